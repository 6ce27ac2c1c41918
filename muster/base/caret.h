// Errors that point at a character of a text: of a line of a file, or of a flag. Columns count
// characters, as editors do, and texts are bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muster {

// The byte at which character `number`, from 0, begins; the text's end if it has fewer.
size_t byte_of_character(std::string_view text, int number);

// Two lines: `line` (as much of it as fits, around the column) and a caret under its character
// `column`, from 1.
std::string caret_lines(std::string_view line, int column);

// Returns "--gpus 0,x3: PROBLEM (at character 3)" and the caret_lines. `flag`: with the blank
// behind it. `at`: the byte of the text. Of a long text the message has the beginning.
std::string pointing_at(std::string_view flag,
                        std::string_view text,
                        size_t at,
                        const std::string& problem);

}  // namespace muster
