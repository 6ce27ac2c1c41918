# LibTorch without a CUDA toolkit: reads the layouts that LibTorch comes in, makes imported targets by hand.
#
#   TORCH   a libtorch folder, a site-packages/torch folder, or a python that imports torch
#           (default: .deps/torch, which scripts/setup.sh makes; then $ENV{TORCH})
#   LibTorch_NO_RPATH   programs look for LibTorch where CMake's RPATHs say; else, when they are installed too, where it is now
#
# Gives: LibTorch::torch (CPU: tensors, autograd, c10d with Gloo), LibTorch::cuda (when the CUDA part and the
# headers of the CUDA runtime and NCCL are there), LibTorch_VERSION, LibTorch_ROOT, LibTorch_PYTHON.

set(_torch "${TORCH}")
if(NOT _torch AND DEFINED ENV{TORCH})
  set(_torch "$ENV{TORCH}")
endif()
if(NOT _torch)
  set(_torch "${CMAKE_CURRENT_LIST_DIR}/../.deps/torch/bin/python")
  if(NOT EXISTS "${_torch}" AND DEFINED LibTorch_DEFAULT)
    set(_torch "${LibTorch_DEFAULT}")
  endif()
endif()
if(NOT IS_DIRECTORY "${_torch}")
  find_program(_torch_program "${_torch}" NO_CACHE)
  if(_torch_program)
    # find_spec does not import torch, which fails where only its CPU part is installed.
    execute_process(COMMAND "${_torch_program}" -c
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _torch_found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(LibTorch_PYTHON "${_torch_program}")
    if(_torch_found)
      set(_torch "${_torch_found}")
    endif()
  endif()
endif()

find_path(LibTorch_INCLUDE torch/csrc/api/include/torch/torch.h HINTS "${_torch}/include" NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CPU torch_cpu HINTS "${_torch}/lib" NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10 c10 HINTS "${_torch}/lib" NO_DEFAULT_PATH NO_CACHE)
set(LibTorch_ROOT "${_torch}")
if(LibTorch_INCLUDE)
  file(STRINGS "${LibTorch_INCLUDE}/torch/headeronly/version.h" _v REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION "${_v}")
endif()
if(NOT LibTorch_PYTHON)
  foreach(_python "${_torch}/../../../../bin/python" "${_torch}/../../../../bin/python3")
    if(EXISTS "${_python}" AND NOT LibTorch_PYTHON)
      set(LibTorch_PYTHON "${_python}")
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
if(NOT LibTorch_INSTALL)  # the command that an installed muster names
  set(LibTorch_INSTALL "scripts/setup.sh train")
endif()
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_CPU LibTorch_C10 LibTorch_INCLUDE
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "looked in '${_torch}' -- run ${LibTorch_INSTALL}, or give TORCH=<libtorch folder | site-packages/torch | python>")
if(NOT LibTorch_FOUND)
  return()
endif()
if(LibTorch_VERSION VERSION_LESS 2.11 OR LibTorch_VERSION VERSION_GREATER_EQUAL 2.16)
  message(FATAL_ERROR "LibTorch: expected version 2.11 to 2.15, got ${LibTorch_VERSION} (${_torch}); give another by TORCH=")
endif()
message(STATUS "LibTorch ${LibTorch_VERSION}: ${_torch}")

get_filename_component(_torch_lib "${LibTorch_CPU}" DIRECTORY)
add_library(LibTorch::torch INTERFACE IMPORTED)
set_target_properties(LibTorch::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE};${LibTorch_INCLUDE}/torch/csrc/api/include"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE};${LibTorch_INCLUDE}/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
  INTERFACE_LINK_LIBRARIES "${LibTorch_CPU};${LibTorch_C10}"
  # The wheel's libraries find cudart, cupti and libgomp by their own RPATH.
  INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
if(NOT LibTorch_NO_RPATH)
  set_property(TARGET LibTorch::torch APPEND PROPERTY INTERFACE_LINK_OPTIONS "LINKER:-rpath,${_torch_lib}")
endif()

find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS "${_torch_lib}" NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS "${_torch_lib}" NO_DEFAULT_PATH NO_CACHE)
get_filename_component(_site "${_torch}/../nvidia" ABSOLUTE)
find_path(LibTorch_CUDART_INCLUDE cuda_runtime_api.h NO_CACHE
  HINTS "${_site}/cu13/include" "${_site}/cuda_runtime/include" "$ENV{CUDA_HOME}/include" PATHS /usr/local/cuda/include)
find_path(LibTorch_NCCL_INCLUDE nccl.h NO_CACHE HINTS "${_site}/nccl/include" PATHS /usr/local/cuda/include)
# CUDA 13 moved these out of the runtime's wheel, into one that PyTorch does not need; its Triton has them too.
find_path(LibTorch_CRT_INCLUDE crt/host_defines.h NO_CACHE
  HINTS "${_site}/cu13/include" "${_site}/cuda_runtime/include" "${_torch}/../triton/backends/nvidia/include"
        "$ENV{CUDA_HOME}/include" PATHS /usr/local/cuda/include)
set(_cuda_includes "${LibTorch_CUDART_INCLUDE};${LibTorch_CRT_INCLUDE};${LibTorch_NCCL_INCLUDE}")
if(LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY AND NOT _cuda_includes MATCHES "NOTFOUND")
  add_library(LibTorch::cuda INTERFACE IMPORTED)
  set_target_properties(LibTorch::cuda PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_cuda_includes}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_cuda_includes}"
    INTERFACE_COMPILE_DEFINITIONS "USE_C10D_NCCL"
    INTERFACE_LINK_LIBRARIES "LibTorch::torch;${LibTorch_CUDA_LIBRARY};${LibTorch_C10_CUDA_LIBRARY}")
endif()
