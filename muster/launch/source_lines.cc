// A rank's stack has modules and offsets; addr2line turns them into functions and lines, once for
// each module. What is not the program's is made shorter: calls of the C++ library on the way to a
// function are left out, and calls in a row within LibTorch or muster are counted.
#include "muster/launch/source_lines.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/mapped.h"
#include "muster/base/symbols.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

// Two of the calls in a row are shown: the first, and the one that the program made.
constexpr size_t kShownOfFolded = 2;

struct Frame {
  std::string number;
  std::string module;
  std::string offset;  // "0x1a2b"
  std::string function;
  std::string line;  // "file.cc:12"; empty: not known
};

// A stack is a rank's words, and parts of it go to addr2line's command line.
bool is_offset(std::string_view text) {
  return text.size() > 2 && text.size() <= 18 && text.starts_with("0x") &&
         text.find_first_not_of("0123456789abcdef", 2) == npos;
}

// "  #3 /opt/libfoo.so(+0x1a2b) _Zfoo"; nothing for a line that is no frame.
std::optional<Frame> parse_frame(const std::string& text) {
  const size_t open = text.find("(+0x");
  const size_t close = text.find(')', open);  // none where nothing is open
  if (!trim(text).starts_with('#') || close == npos)
    return std::nullopt;
  const size_t hash = text.find('#');
  const size_t blank = text.find(' ', hash);
  const auto offset = text.substr(open + 2, close - open - 2);
  if (blank > open || !is_offset(offset))
    return std::nullopt;
  return Frame{.number = text.substr(hash, blank - hash),
               .module = text.substr(blank + 1, open - blank - 1),
               .offset = offset,
               .function = demangled(std::string(trim(text.substr(close + 1))).c_str()),
               .line = {}};
}

// Takes what addr2line says of one address. "??" means that it does not know. The nearest symbol of
// a stripped library may be far away, so a function without a line counts only if
// `has_all_symbols`.
void take_answer(Frame& frame,
                 const std::string& function,
                 const std::string& place,
                 bool has_all_symbols) {
  const auto line = place.substr(0, place.find(" ("));
  const bool knows_line = !line.starts_with("?") && !line.starts_with(":") && !line.ends_with("?");
  if (knows_line)
    frame.line = line;
  const bool is_only_source = frame.function.empty() && has_all_symbols;
  if (!function.starts_with("?") && (knows_line || is_only_source))
    frame.function = function;
}

// Asks addr2line for the frames of one module; it answers two lines for each.
void find_lines(const std::string& module, const std::vector<Frame*>& frames) {
  const bool has_all_symbols = !module.starts_with("/lib") && !module.starts_with("/usr/lib");
  const auto offsets =
      sum_of<std::string>(frames, [](const Frame* frame) { return cat(" ", frame->offset); });
  const Strings said = addr2line(module, offsets);
  for (size_t i = 0; i < frames.size() && 2 * i + 1 < said.size(); ++i)
    take_answer(*frames[i], said[2 * i], said[2 * i + 1], has_all_symbols);
}

// A module that was built anew since has other offsets. One with a time of the future was built
// before the clock was set back.
bool has_changed_since(const std::string& module, WallTime taken) {
  struct stat info{};
  if (::stat(module.c_str(), &info) != 0)
    return false;
  const auto changed = WallClock::from_time_t(info.st_mtime);
  return changed > taken && changed <= WallClock::now();
}

std::string shorter(std::string function) {
  constexpr std::string_view kString =
      "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
  for (size_t at = 0; (at = function.find(kString, at)) != npos;)
    function.replace(at, kString.size(), "std::string");
  return function;
}

std::string file_of(const Frame& frame) {
  return frame.module.substr(frame.module.rfind('/') + 1);
}

bool is_libtorchs(const Frame& frame) {
  const std::string file = file_of(frame);
  return frame.line.empty() && (file.starts_with("libtorch") || file.starts_with("libc10"));
}

bool is_musters(const Frame& frame) {
  return file_of(frame).starts_with("libmuster") || frame.function.starts_with("muster::");
}

// The library whose calls in a row are counted only; empty: the call is the program's.
std::string folded_into(const std::optional<Frame>& frame) {
  if (!frame)
    return "";
  if (is_libtorchs(*frame))
    return "LibTorch";
  return is_musters(*frame) ? "muster" : "";
}

// The end of the calls in a row that fold into the same library as frame `first` does.
size_t end_of_folded(const std::vector<std::optional<Frame>>& frames, size_t first) {
  const auto whose = folded_into(frames[first]);
  if (whose.empty())
    return first;
  const auto of_others = [&](const auto& frame) {
    return folded_into(frame) != whose;
  };
  const auto rest = std::span(frames).subspan(first);
  return first + (std::ranges::find_if(rest, of_others) - rest.begin());
}

std::string to_text(const Frame& frame) {
  const std::string function = frame.function.empty() ? "??" : shorter(frame.function);
  if (!frame.line.empty())
    return cat("  ", frame.number, " ", function, " at ", frame.line);
  return cat("  ", frame.number, " ", function, " (", file_of(frame), "+", frame.offset, ")");
}

// Completes the frames. Of a module that has changed since `taken` nothing is known: its frames go.
void find_lines(std::vector<std::optional<Frame>>& frames, WallTime taken) {
  std::map<std::string, std::vector<Frame*>> by_module;
  for (auto& frame : frames) {
    if (!frame || !frame->module.starts_with("/"))
      continue;
    if (has_changed_since(frame->module, taken)) {
      frame.reset();
    } else {
      by_module[frame->module].push_back(&*frame);
    }
  }
  for (const auto& [module, of_module] : by_module)
    find_lines(module, of_module);
}

}  // namespace

std::string with_source_lines(const std::string& stack, WallTime taken) {
  const Strings lines = split(stack, '\n');
  auto frames = mapped(lines, parse_frame);
  find_lines(frames, taken);
  Strings text;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (frames[i] && is_way_to_function(frames[i]->function))
      continue;
    text.push_back(frames[i] ? to_text(*frames[i]) : lines[i]);
    const size_t end = end_of_folded(frames, i);
    if (end - i <= kShownOfFolded + 1)
      continue;
    const size_t folded = end - i - kShownOfFolded;
    text.push_back(cat("     … ", folded, " calls in ", folded_into(frames[i])));
    text.push_back(to_text(*frames[end - 1]));
    i = end - 1;
  }
  return join(text, "\n");
}

namespace {

// A call in Python is a line "File …, line …, in …", and perhaps its source further to the right,
// and marks below that. Returns the last line of the call that begins at `at`.
size_t last_line_of_call(const Strings& lines, size_t at) {
  const size_t indent = lines[at].find("File ");
  const auto is_source = [&](const std::string& line) {
    return line.starts_with("  ") && line.find_first_not_of(' ') > indent + 1;
  };
  const auto behind = std::span(lines).subspan(at + 1);
  return at + (std::ranges::find_if_not(behind, is_source) - behind.begin());
}

void add_folded(Strings& text, int calls) {
  if (calls > 0)
    text.push_back(cat("    … ", plural(calls, "call"), " in muster"));
}

}  // namespace

Strings with_musters_calls_folded(const Strings& lines) {
  constexpr std::string_view kOwnFile = "/muster/__init__.py\", line ";
  Strings text;
  int folded = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (has_text(lines[i], kOwnFile)) {
      ++folded;
      i = last_line_of_call(lines, i);
      continue;
    }
    add_folded(text, std::exchange(folded, 0));
    text.push_back(lines[i]);
  }
  add_folded(text, folded);
  return text;
}

// The rank's handler wrote the same lines to standard error, where they are not wanted twice.
void take_signal_stack(RankExit& exit, Strings& lines) {
  Strings said = std::exchange(exit.facts.said, {});
  if (exit.signal == 0 || exit.facts.signal != signal_name(exit.signal) || said.empty())
    return;
  const auto printed = std::search(lines.begin(), lines.end(), said.begin(), said.end());
  if (printed != lines.end())
    lines.erase(printed, printed + std::ssize(said));
  said.erase(said.begin());
  exit.stack = join(said, "\n");
}

// The C++ library writes the type of the exception, and what() in the next line.
void take_uncaught_exception(RankExit& exit, const Strings& lines) {
  constexpr std::string_view kThrown = "terminate called after throwing an instance of '";
  constexpr std::string_view kWhat = "  what():";
  if (exit.signal == 0 || !exit.message.empty())
    return;
  const auto thrown =
      std::ranges::find_if(lines, [&](const auto& line) { return line.starts_with(kThrown); });
  if (thrown == lines.end())
    return;
  exit.message = thrown->substr(kThrown.size(), thrown->rfind('\'') - kThrown.size());
  const auto next = thrown + 1;
  if (next != lines.end() && next->starts_with(kWhat))
    exit.message += cat(": ", trim(next->substr(kWhat.size())));
}

// Python's faulthandler writes the fault, and a stack for each thread; the current thread's is
// taken.
void take_python_fault(RankExit& exit, const Strings& lines) {
  constexpr std::string_view kFault = "Fatal Python error: ";
  if (exit.signal == 0 || !exit.stack.empty())
    return;
  const auto fault =
      std::ranges::find_if(lines, [&](const auto& line) { return line.starts_with(kFault); });
  const auto thread = std::find_if(fault, lines.end(), [](const auto& line) {
    return line.starts_with("Current thread 0x") && has_text(line, "(most recent call first)");
  });
  if (thread == lines.end())
    return;
  if (exit.message.empty())
    exit.message = *fault;
  const auto end = std::find_if_not(
      thread + 1, lines.end(), [](const std::string& line) { return line.starts_with("  "); });
  exit.stack = join(Strings(thread, end), "\n");
}

}  // namespace muster
