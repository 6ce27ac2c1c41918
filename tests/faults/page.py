"""What docs/faults.md says of each row, so that a row holds it: the messages, the exit codes and the numbers.

The page's messages are looked for in what the row's jobs have said. In them
  - `…` stands for anything, and `vm` for this machine's name;
  - a number of four or more digits is a process, a port or a user: another one here;
  - a number with a decimal that is not .0 was measured, and may be another one here, in another unit too;
  - every other number is held as it stands: `within 3.0s`, `restart 1 of 2`.
"""

import functools
import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "faults.md"
NOT_A_MESSAGE = re.compile(r"\S*|--?[\w-]+ \S+|(muster|ctest|kill) .*")  # a name, a flag and its value, a command
VARIES = re.compile(r"(?P<address>\d+(?:\.\d+){3})|(?P<measured>\d+\.(?!0(?!\d))\d+ ?(?:µs|ms|s|B|[KMGT]iB)?|\d{4,})"
                    r"|(?P<anything>…)|(?P<host>\bvm\b)|(?P<state>(?<=, state )[A-Z](?=\)))")
ELSEWHERE = {"measured": r"[\d.]+ ?(?:µs|ms|s|min|B|[KMGT]iB)?", "anything": ".*?", "host": r"\S+?", "state": "[A-Z]"}


@functools.cache
def rows():
    """By number: what muster does then, in the page's words."""
    found = {}
    for line in PAGE.read_text().splitlines():
        if row := re.fullmatch(r"\| (\d+) \| .*? \| (.*) \|", line):
            if int(row[1]) in found:
                raise AssertionError(f"docs/faults.md has two rows {row[1]}")
            found[int(row[1])] = row[2]
    return found


def messages(number):
    return [span for span in re.findall("`([^`]*)`", rows()[number]) if not NOT_A_MESSAGE.fullmatch(span)]


def exit_codes(number):
    return {int(code) for code in re.findall(r"exit codes? (?:\w+ )?(\d+)", re.sub("`[^`]*`", "", rows()[number]))}


def pattern(message):
    """A regular expression of that message as another machine may say it."""
    message = message.strip("… ")  # at its ends, anything is nothing to look for
    found, end = "", 0
    for varies in VARIES.finditer(message):
        found += re.escape(message[end:varies.start()]) + ELSEWHERE.get(varies.lastgroup, re.escape(varies[0]))
        end = varies.end()
    found += re.escape(message[end:])
    return r"\b" + found if message[:1].isalnum() else found


def not_held(number, said, codes):
    """What of the row did not happen: messages that nobody said, and exit codes with which no job ended."""
    return [message for message in messages(number) if not re.search(pattern(message), said)] + \
           [f"exit code {code}" for code in sorted(exit_codes(number) - set(codes))]


def told(number, text):
    """The number that the row has at `()` in this text."""
    found = re.search(text.replace("()", r"([\d.]+)"), rows()[number])
    if not found:
        raise AssertionError(f"row {number} of docs/faults.md has no '{text}'")
    return float(found[1])
