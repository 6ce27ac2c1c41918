#include "muster/run/error_file.h"

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"

namespace muster {

namespace {

std::string type_name(const std::exception& error) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : typeid(error).name();
}

}  // namespace

std::string describe_exception(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) {
    return cat(to_string(own->code()), ": ", own->message(), " [", own->where(), "]");
  }
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    return cat(type_name(error), ": ", torch_error->what_without_backtrace());
  }
  return cat(type_name(error), ": ", error.what());
}

void write_error_file(const std::string& message) noexcept {
  try {
    const auto path = get_env("TORCHELASTIC_ERROR_FILE");
    if (!path) return;
    const nlohmann::json document = {
        {"message", {{"message", message}, {"extraInfo", {{"timestamp", cat(std::time(nullptr))}}}}}};
    write_file(*path, document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } catch (const std::exception& error) {
    log(LogLevel::warn, cat("error file: ", error.what()));
  }
}

}  // namespace muster
