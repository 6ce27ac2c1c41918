# A toolchain file: builds for arm64 with programs of another processor, as scripts/setup.sh control installs them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(C_COMPILER aarch64-linux-gnu-gcc)  # tests/c_api
