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
    "algorithm": "all_of any_of binary_search clamp copy copy_if copy_n count count_if equal fill fill_n find find_if "
                 "for_each generate includes lower_bound max max_element merge min min_element minmax_element mismatch "
                 "none_of nth_element partition replace reverse rotate set_difference shuffle sort stable_sort transform "
                 "unique upper_bound",
    "array": "array to_array",
    "atomic": "atomic atomic_ref atomic_thread_fence memory_order_acquire memory_order_relaxed memory_order_release",
    "bit": "bit_cast bit_ceil bit_floor bit_width countl_zero countr_zero has_single_bit popcount",
    "bitset": "bitset",
    "cerrno": "",
    "charconv": "from_chars to_chars",
    "chrono": "chrono",
    "cmath": "abs ceil cos exp floor fmod isfinite isinf isnan log log2 pow round sin sqrt",
    "condition_variable": "condition_variable",
    "cstdint": "",
    "cstring": "",
    "deque": "deque",
    "exception": "current_exception exception exception_ptr make_exception_ptr rethrow_exception",
    "filesystem": "filesystem",
    "fstream": "fstream ifstream ofstream",
    "functional": "function hash invoke less greater plus reference_wrapper ref cref",
    "future": "async future packaged_task promise shared_future",
    "initializer_list": "initializer_list",
    "iostream": "cerr cin cout",
    "limits": "numeric_limits",
    "list": "list",
    "map": "map multimap",
    "memory": "enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "lock_guard mutex once_flag call_once recursive_mutex scoped_lock unique_lock",
    "numeric": "accumulate gcd iota lcm partial_sum reduce",
    "optional": "make_optional nullopt optional",
    "random": "discrete_distribution mt19937 mt19937_64 normal_distribution random_device uniform_int_distribution "
              "uniform_real_distribution",
    "regex": "regex regex_match regex_search smatch",
    "set": "multiset set",
    "span": "span",
    "sstream": "istringstream ostringstream stringstream",
    "stdexcept": "invalid_argument logic_error out_of_range runtime_error",
    "string": "getline stod stoi stol stoll string to_string",
    "string_view": "string_view",
    "system_error": "error_code system_error",
    "thread": "thread this_thread",
    "tuple": "make_tuple tie tuple",
    "typeinfo": "",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "as_const exchange in_range cmp_equal cmp_greater cmp_greater_equal cmp_less cmp_less_equal make_pair move pair "
               "swap",
    "variant": "get_if holds_alternative monostate variant visit",
    "vector": "vector",
}
OWNERS = {name: header for header, names in HEADERS.items() for name in names.split()}
C_NAMES = {
    "cerrno": re.compile(r"\berrno\b"),
    "cstdint": re.compile(r"(?<![\w:])u?int(?:8|16|32|64)_t\b|\buintptr_t\b"),
    "cstring": re.compile(r"\bstd::(?:mem(?:cpy|cmp|set|move|chr)|str(?:len|cmp|ncmp|chr|error))\b"),
    "ranges": re.compile(r"\bstd::views::\w"),
}
STANDARD_NAME = re.compile(r"\bstd::(?:ranges::)?(\w+)")
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
INCLUDE = re.compile(r'^#include <(\w+)>$', re.MULTILINE)


def used_headers(text):
    code = NOT_CODE.sub(lambda match: '""' if match.group().startswith(('"', "R")) else "", text)
    code = re.sub(r"^#include.*$", "", code, flags=re.MULTILINE)
    used = {OWNERS[name] for name in STANDARD_NAME.findall(code) if name in OWNERS}
    return used | {header for header, pattern in C_NAMES.items() if pattern.search(code)}


def own_header(path):
    header = path.with_suffix(".h")
    return header.read_text(encoding="utf-8") if path.suffix == ".cc" and header.is_file() else ""


def missing_headers(path, text):
    return sorted(used_headers(text) - set(INCLUDE.findall(text)) - set(INCLUDE.findall(own_header(path))))


def with_headers(text, headers):
    """The text with these headers among its standard ones, or in a block of their own before those of the project."""
    standard = INCLUDE.findall(text)
    if standard:
        block = re.search(r"(?:^#include <\w+>\n)+", text, re.MULTILINE)
        lines = sorted({*block.group().splitlines(), *(f"#include <{header}>" for header in headers)})
        return text[: block.start()] + "\n".join(lines) + "\n" + text[block.end():]
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
