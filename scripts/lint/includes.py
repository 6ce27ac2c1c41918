#!/usr/bin/env python3
"""includes.py [--fix] [FILE...]: each source names the standard headers of what it uses, so that it can be compiled alone.

Without files: all of muster/. A .cc file may rely on its own header, and on no other. --fix writes what is missing.
Returns 1 when something is missing.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
IN_C = ROOT / "muster/c_api.h"  # a C compiler reads it

# Header -> what it declares: names of std, but for those of C, which are used without a namespace.
HEADERS = {
    "algorithm": "adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal equal_range fill "
                 "fill_n find find_if find_if_not for_each generate includes is_sorted lower_bound max max_element merge min "
                 "min_element minmax minmax_element mismatch next_permutation none_of nth_element partition partition_point "
                 "replace replace_if reverse rotate search set_difference shuffle sort stable_partition stable_sort "
                 "swap_ranges transform unique upper_bound",
    "array": "array to_array",
    "atomic": "atomic atomic_ref atomic_thread_fence memory_order_acquire memory_order_relaxed memory_order_release "
              "memory_order_seq_cst",
    "bit": "bit_cast bit_ceil bit_floor bit_width countl_one countl_zero countr_zero endian has_single_bit popcount",
    "bitset": "bitset",
    "cctype": "isalnum isalpha iscntrl isdigit isprint isspace isxdigit tolower toupper",
    "cerrno": "",
    "charconv": "chars_format from_chars to_chars",
    "chrono": "chrono",
    "cmath": "abs atan ceil cos exp exp2 fabs floor fmod hypot isfinite isinf isnan ldexp llround log log10 log2 lround "
             "nearbyint pow round sin sqrt tan trunc",
    "concepts": "constructible_from convertible_to derived_from floating_point integral invocable same_as",
    "condition_variable": "condition_variable",
    "csetjmp": "jmp_buf longjmp",
    "cstddef": "byte max_align_t ptrdiff_t",
    "cstdint": "",
    "cstdio": "fflush fprintf fputs fread printf snprintf",
    "cstdlib": "atexit atoi exit free getenv labs malloc strtod strtol strtoull",
    "cstring": "",
    "ctime": "strftime time time_t tm",
    "deque": "deque",
    "exception": "current_exception exception exception_ptr make_exception_ptr rethrow_exception terminate throw_with_nested "
                 "uncaught_exceptions",
    "filesystem": "filesystem",
    "fstream": "fstream ifstream ofstream",
    "functional": "cref equal_to function greater greater_equal hash identity invoke less logical_not mem_fn multiplies not_fn "
                  "plus ref reference_wrapper",
    "future": "async future future_status launch packaged_task promise shared_future",
    "initializer_list": "initializer_list",
    "iostream": "cerr cin cout",
    "iterator": "advance back_inserter default_sentinel default_sentinel_t distance inserter make_move_iterator next prev",
    "limits": "numeric_limits",
    "list": "list",
    "map": "map multimap",
    "memory": "enable_shared_from_this make_shared make_unique shared_ptr to_address unique_ptr weak_ptr",
    "mutex": "call_once defer_lock lock_guard mutex once_flag recursive_mutex scoped_lock unique_lock",
    "new": "bad_alloc nothrow",
    "numbers": "numbers",
    "numeric": "accumulate gcd iota lcm partial_sum reduce",
    "optional": "make_optional nullopt optional",
    "queue": "priority_queue queue",
    "random": "discrete_distribution gamma_distribution mt19937 mt19937_64 normal_distribution random_device "
              "uniform_int_distribution uniform_real_distribution",
    "ranges": "forward_range subrange",
    "regex": "regex regex_match regex_search smatch",
    "set": "multiset set",
    "shared_mutex": "shared_lock shared_mutex shared_timed_mutex",
    "source_location": "source_location",
    "span": "as_bytes as_writable_bytes span",
    "sstream": "istringstream ostringstream stringstream",
    "stdexcept": "invalid_argument logic_error out_of_range runtime_error",
    "string": "getline stod stoi stol stoll stoull string to_string",
    "string_view": "string_view",
    "system_error": "errc error_code generic_category system_error",
    "thread": "jthread this_thread thread",
    "tuple": "apply ignore make_tuple tie tuple tuple_cat",
    "type_traits": "add_lvalue_reference_t common_type_t conditional_t decay_t enable_if_t invoke_result_t is_aggregate_v "
                   "is_arithmetic_v is_base_of_v is_class_v is_const_v is_convertible_v is_enum_v is_invocable_r_v "
                   "is_invocable_v is_lvalue_reference_v is_same_v is_trivially_copyable_v is_void_v remove_const_t "
                   "remove_cvref_t remove_reference_t type_identity type_identity_t underlying_type_t",
    "typeinfo": "type_info",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "as_const cmp_equal cmp_greater cmp_greater_equal cmp_less cmp_less_equal cmp_not_equal declval exchange "
               "forward in_place in_range index_sequence index_sequence_for make_index_sequence make_pair move pair swap",
    "variant": "get_if holds_alternative monostate variant visit",
    "vector": "vector",
}
OWNERS = {name: (header,) for header, names in HEADERS.items() for name in names.split()}
# What several headers declare: one of them is enough. Not std::size and its like: who has a container has them.
OWNERS |= {name: ("tuple", "utility", "array") for name in ("tuple_element_t", "tuple_size", "tuple_size_v")}
OWNERS |= {name: ("ostream", "iostream", "sstream", "fstream") for name in ("endl", "flush", "ios", "ostream")}
OWNERS |= {"micro": ("ratio", "chrono"), "remove": ("algorithm", "cstdio")}
# Header of the system -> its functions, called as ::name.
SYSTEM_HEADERS = {
    "arpa/inet.h": "inet_ntop inet_pton",
    "dirent.h": "closedir fdopendir opendir readdir",
    "dlfcn.h": "dladdr1 dlclose dlerror dlopen dlsym",
    "fcntl.h": "fallocate fcntl open openat posix_fallocate",
    "netdb.h": "freeaddrinfo gai_strerror getaddrinfo getnameinfo",
    "poll.h": "poll ppoll",
    "pthread.h": "pthread_atfork pthread_getname_np pthread_setname_np",
    "pwd.h": "getpwuid getpwuid_r",
    "sched.h": "sched_getaffinity sched_getcpu sched_setaffinity sched_yield",
    "signal.h": "kill pthread_kill pthread_sigmask raise sigaction sigaltstack sigemptyset signal sigprocmask sigtimedwait",
    "stdio.h": "popen rename renameat2",
    "stdlib.h": "mkdtemp mkstemp realpath setenv unsetenv",
    "sys/epoll.h": "epoll_create1 epoll_ctl epoll_wait",
    "sys/eventfd.h": "eventfd",
    "sys/file.h": "flock",
    "sys/ioctl.h": "ioctl",
    "sys/mman.h": "madvise memfd_create mmap munmap",
    "sys/prctl.h": "prctl",
    "sys/resource.h": "getrlimit getrusage setrlimit",
    "sys/signalfd.h": "signalfd",
    "sys/socket.h": "accept4 bind connect getsockname getsockopt listen recv recvmsg send sendmsg setsockopt shutdown socket",
    "sys/stat.h": "fstat fstatat lstat mkdir stat",
    "sys/statvfs.h": "fstatvfs statvfs",
    "sys/wait.h": "waitid waitpid",
    "termios.h": "tcgetattr tcsetattr",
    "time.h": "clock_gettime gmtime_r localtime_r timegm",
    "unistd.h": "_exit access chdir close dup2 execve fork fsync ftruncate getegid geteuid getgid gethostname getpgid getpid "
                "getppid gettid getuid isatty lseek pause pipe2 pread pwrite read readlink rmdir setpgid setsid syscall sysconf "
                "tcgetpgrp unlink unlinkat write",
}
SYSTEM_OWNERS = {name: (header,) for header, names in SYSTEM_HEADERS.items() for name in names.split()}
# C++'s header of the same declares the system's functions, too.
SAME_IN_CXX = {"signal.h": "csignal", "stdio.h": "cstdio", "stdlib.h": "cstdlib", "time.h": "ctime"}
SYSTEM_NAME = re.compile(r"(?<![\w>])::(\w+)\(")
# Names without a namespace.
C_NAMES = {
    ("cassert",): re.compile(r"\bassert\("),
    ("cerrno", "errno.h"): re.compile(
        r"\b(?:errno|EACCES|EAGAIN|EBADF|EBUSY|ECHILD|ECONN\w+|EEXIST|EINPROGRESS|EINTR|EINVAL|EIO|EISDIR|ELOOP|EMFILE|ENODEV|"
        r"ENOENT|ENOEXEC|ENOMEM|ENOSPC|ENOSYS|ENOTDIR|ENOTSUP|EOPNOTSUPP|EPERM|EPIPE|ERANGE|EROFS|ESRCH|ETIMEDOUT|"
        r"EWOULDBLOCK|EXDEV)\b"),
    ("climits", "limits.h"): re.compile(r"\b(?:INT|LONG)_(?:MAX|MIN)\b|\bCHAR_BIT\b|\bPATH_MAX\b"),
    ("cmath",): re.compile(r"\b(?:NAN|INFINITY|M_PI)\b"),
    ("csignal", "signal.h"): re.compile(r"\bSIG(?:ABRT|ALRM|BUS|CHLD|CONT|FPE|HUP|ILL|INT|KILL|PIPE|QUIT|RTMAX|RTMIN|SEGV|"
                                        r"STOP|SYS|TERM|TSTP|TTIN|TTOU|USR1|USR2|WINCH|XFSZ)\b"),
    ("cstddef",): re.compile(r"\boffsetof\("),
    ("cstdint", "stdint.h"): re.compile(r"(?<![\w:])u?int(?:8|16|32|64)_t\b|\bu?intptr_t\b|\bU?INT(?:8|16|32|64)_(?:MAX|MIN)\b|"
                                        r"\bSIZE_MAX\b"),
    ("cstdlib",): re.compile(r"\bEXIT_(?:FAILURE|SUCCESS)\b"),
    ("cstring",): re.compile(r"\bstd::(?:mem(?:cpy|cmp|set|move|chr)|str(?:len|cmp|ncmp|chr|error))\b"),
    ("ranges",): re.compile(r"\bstd::views::\w"),
    ("sys/wait.h",): re.compile(r"\bW(?:IFEXITED|EXITSTATUS|IFSIGNALED|TERMSIG|IFSTOPPED|COREDUMP|NOHANG|UNTRACED)\b"),
}
STANDARD_NAME = re.compile(r"\bstd::(?:ranges::)?(\w+)")
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
INCLUDE = re.compile(r'^#include <([\w/.]+)>$', re.MULTILINE)


def used_headers(text):
    """For each name the headers that declare it: one of them is to be included."""
    code = NOT_CODE.sub(lambda match: '""' if match.group().startswith(('"', "R")) else "", text)
    code = re.sub(r"^#include.*$", "", code, flags=re.MULTILINE)
    used = {OWNERS[name] for name in STANDARD_NAME.findall(code) if name in OWNERS}
    used |= {SYSTEM_OWNERS[name] for name in SYSTEM_NAME.findall(code) if name in SYSTEM_OWNERS}
    return used | {headers for headers, pattern in C_NAMES.items() if pattern.search(code)}


def own_header(path):
    header = path.with_suffix(".h")
    return header.read_text(encoding="utf-8") if path.suffix == ".cc" and header.is_file() else ""


def missing_headers(path, text):
    included = {*INCLUDE.findall(text), *INCLUDE.findall(own_header(path))}
    included |= {header for header, same in SAME_IN_CXX.items() if same in included}
    missing = {choice[0] for choice in used_headers(text) if included.isdisjoint(choice)}
    return sorted({SAME_IN_CXX.get(header, header) for header in missing})


def with_headers(text, headers):
    """The text with these headers among its standard ones, or in a block of their own before those of the project."""
    standard = re.search(r"(?:^#include <\w+>\n)+", text, re.MULTILINE)
    if standard:
        lines = sorted({*standard.group().splitlines(), *(f"#include <{header}>" for header in headers)})
        return text[: standard.start()] + "\n".join(lines) + "\n" + text[standard.end():]
    added = "".join(f"#include <{header}>\n" for header in headers) + "\n"
    includes = [match.start() for match in re.finditer(r"^#include ", text, re.MULTILINE)]
    own = re.match(r'(?:(?://[^\n]*)?\n)*#include "[^"]+"\n\n?', text)
    if own and not text.startswith("#pragma once") and "#pragma once" not in text:
        return text[: own.end()].rstrip("\n") + "\n\n" + added + text[own.end():]
    pragma = text.find("#pragma once\n")
    place = includes[0] if includes else pragma + len("#pragma once\n\n")
    return text[:place] + added + text[place:]


def main(arguments):
    fix = "--fix" in arguments
    names = [argument for argument in arguments if argument != "--fix"]
    paths = [pathlib.Path(name).resolve() for name in names]
    paths = paths or sorted(path for path in (ROOT / "muster").rglob("*") if path.suffix in (".h", ".cc"))
    found = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        headers = missing_headers(path, text)
        if path == IN_C:
            continue
        if headers and fix:
            path.write_text(with_headers(text, headers), encoding="utf-8")
        elif headers:
            found += 1
            print(f"{path.relative_to(ROOT)}: uses {', '.join(f'<{header}>' for header in headers)} without including it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
