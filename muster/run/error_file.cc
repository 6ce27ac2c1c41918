// A failure is told twice: as text in the log, and as JSON in the error file, which the launcher
// reads for its report and for the job's exit code. An exception comes here as std::exception_ptr,
// since it need not be a std::exception; each question about it throws it again.
#include "muster/run/error_file.h"

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <typeinfo>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/json_member.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/lost_ranks.h"
#include "muster/base/symbols.h"
#include "muster/launch/rank_exit_json.h"
#include "muster/run/fatal_signal.h"
#include "muster/run/returned_early.h"
#include "muster/run/thrown_stack.h"

namespace muster {

namespace {

struct ErrorFile {
  std::mutex mutex;
  std::string path;  // empty: the environment names it
};

// The object is never destroyed, because threads may outlive main().
ErrorFile& error_file() {
  static auto& file = *new ErrorFile;
  return file;
}

std::optional<std::string> path_of_error_file() {
  const Lock lock(error_file().mutex);
  if (!error_file().path.empty())
    return error_file().path;
  return get_env("TORCHELASTIC_ERROR_FILE");
}

// Describes whatever was thrown. The caller is in a handler of it.
std::string describe_current(const std::exception_ptr& current) {
  try {
    std::rethrow_exception(current);
  } catch (const std::exception& error) {
    return describe_exception(error);
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return cat("an exception that is no std::exception",
               type != nullptr ? cat(", of type ", demangled(type->name())) : "");
  }
}

// Returns what the launcher is told about an error beside its words.
ErrorFacts facts_of(const std::exception_ptr& current) {
  try {
    std::rethrow_exception(current);
  } catch (const Error& error) {
    ErrorFacts facts{.code = to_string(error.code()),
                     .left_early = dynamic_cast<const ReturnedEarly*>(&error) != nullptr};
    if (error.code() == ErrorCode::peer_failed)
      facts.lost_ranks = lost_ranks();
    return facts;
  } catch (...) {
    return {};
  }
}

// Returns LibTorch's own backtrace if the user asked for it, as in Python; otherwise the stack that
// was kept when the exception was thrown, without the frames that it shares with `until`.
std::string stack_of(const std::exception_ptr& current, const Stack& until) {
  if (get_env("TORCH_SHOW_CPP_STACKTRACES") == "1") {
    try {
      std::rethrow_exception(current);
    } catch (const c10::Error& error) {
      if (error.backtrace())
        return error.backtrace()->get();
    } catch (...) {
      // Only LibTorch's errors have a backtrace.
    }
  }
  return describe(thrown_stack(current), until);
}

}  // namespace

std::string describe_exception(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error))
    return cat(to_string(own->code()), ": ", own->message(), " [", own->where(), "]");
  const auto type = demangled(typeid(error).name());
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error))
    return cat(type, ": ", torch_error->what_without_backtrace());
  return cat(type, ": ", error.what());
}

// The handler of fatal signals reads its own copy of the path, without a lock.
void set_error_file(const std::string& path) {
  const Lock lock(error_file().mutex);
  error_file().path = path;
  tell_fatal_signals_to(path);
}

bool write_error_file(const std::string& message,
                      const std::string& stack,
                      const ErrorFacts& facts) noexcept {
  try {
    const auto path = path_of_error_file();
    if (!path)
      return false;
    nlohmann::ordered_json extra = {{"timestamp", cat(std::time(nullptr))},
                                    {"muster", to_json(facts)}};
    add_unless_default(extra, "py_callstack", stack);  // torchrun's name for it
    const nlohmann::ordered_json document = {
        {"message", {{"message", message}, {"extraInfo", std::move(extra)}}}};
    write_file(*path, json_text(document));
    return true;
  } catch (const std::exception& error) {
    log_warning("error file: ", error.what());
    return false;
  }
}

// A failure while a failure is told is itself only logged.
void tell_failure(const std::exception_ptr& error) noexcept {
  try {
    const auto message = describe_current(error);
    const auto stack = stack_of(error, Stack::here());
    const bool written = write_error_file(message, stack, facts_of(error));
    // A launcher that shows the file in its own report sets MUSTER_CARD to the file's path.
    if (written && get_env("MUSTER_CARD") == get_env("TORCHELASTIC_ERROR_FILE"))
      return;
    log_error(message, stack.empty() ? "" : "; thrown here, innermost call first:\n", stack);
  } catch (const std::exception& failure) {
    log_error(failure.what());
  }
}

}  // namespace muster
