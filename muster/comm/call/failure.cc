// Exceptions that have a type of their own are told apart by that. Gloo and NCCL report everything
// as one type whose text tells what happened, and classify() reads it.
#include "muster/comm/call/failure.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <initializer_list>
#include <string_view>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/json_words.h"
#include "muster/base/strings.h"
#include "muster/comm/call/rank_processes.h"

namespace muster {

namespace {

constexpr milliseconds kToEnd{200};  // of a process that has closed its connections

bool mentions(const std::string& text, std::initializer_list<const char*> words) {
  return any_of(words, [&](const char* word) { return text.find(word) != std::string::npos; });
}

// Returns Gloo's text without the source file before what happened and the advice after it.
std::string in_short(const std::string& text) {
  std::string_view shown = text;
  const size_t source_end = shown.starts_with('[') ? shown.find("] ") : std::string_view::npos;
  if (source_end != std::string_view::npos)
    shown.remove_prefix(source_end + 2);
  return std::string(trim(shown.substr(0, shown.find(" This is typically"))));
}

// A rank that has left for the sake of another is not the one to look at: the error also names
// those whose processes have ended. Returns "" where it does that already.
std::string ended_beside(const Error& error) {
  if (error.code() != ErrorCode::peer_failed || mentions(error.message(), {") ended"}))
    return "";
  return ended_ranks({});
}

// This is the one place that reads texts of Gloo and NCCL.
Error classify(const std::string& what, const std::string& text) {
  if (mentions(text,
               {"closed by peer",
                "Connection reset",
                "Broken pipe",
                "remote process exited",
                "Socket closed"})) {
    const auto ended = ended_ranks(kToEnd);
    const std::string who =
        ended.empty() ? "another rank ended or left the group" : cat(ended, " ended");
    return Error(ErrorCode::peer_failed,
                 what,
                 ": ",
                 who,
                 " (",
                 in_short(text),
                 "); the first rank that failed has the cause");
  }
  if (mentions(text, {"imed out", "imeout"})) {
    return Error(
        ErrorCode::timeout, what, ": ", text, "; see which rank is late, or give a longer timeout");
  }
  return Error(ErrorCode::backend_failed, what, ": ", text);
}

}  // namespace

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return std::string(trim(std::string_view(text).substr(0, text.find('\n'))));
}

void rethrow_translated(const std::string& what) {
  try {
    throw;
  } catch (const Error& error) {
    const auto ended = ended_beside(error);
    if (ended.empty())
      throw;
    throw Error(error.code(), error.message(), "; ", ended, " ended");
  } catch (const c10d::TimeoutError& error) {
    throw Error(ErrorCode::timeout, what, ": ", first_line(error));
  } catch (const c10::DistStoreError& error) {
    throw unavailable(what, ": ", first_line(error));
  } catch (const c10::DistNetworkError& error) {
    throw unavailable(what, ": ", first_line(error));
  } catch (const std::exception& error) {
    throw classify(what, json_words(first_line(error)));
  }
}

void translate_failures(const std::string& what, const Callback& body) {
  try {
    body();
  } catch (...) {
    rethrow_translated(what);
  }
}

}  // namespace muster
