// A message lies in an array of its thread, so that telling of an error needs no memory. Texts are
// allocated by malloc(), since a C program frees them.
#include "muster/c_api/answer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "muster/base/error.h"
#include "muster/base/version.h"
#include "muster/c_api.h"

namespace muster {

namespace {

// A plain array: the thread may ask for it while it ends.
thread_local char t_last_error[4096] = "";

void remember(const char* message) noexcept {
  const size_t length = std::min(std::strlen(message), sizeof(t_last_error) - 1);
  std::memcpy(t_last_error, message, length);
  t_last_error[length] = 0;
}

char* copy_of(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr)
    throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace

int answer(const Callback& work) noexcept {
  try {
    work();
    return MUSTER_OK;
  } catch (const Error& error) {
    remember(error.what());
    return static_cast<int>(error.code()) + 1;
  } catch (const std::exception& error) {
    remember(error.what());
    return MUSTER_INTERNAL;
  } catch (...) {
    remember("an unknown exception");
    return MUSTER_INTERNAL;
  }
}

int answer_text(char** text, const std::function<std::string()>& work) noexcept {
  return answer([&] {
    if (text == nullptr)
      throw invalid_argument(
          "C interface: expected a place for the text, got NULL; pass the address of a "
          "char *");
    *text = nullptr;
    *text = copy_of(work());
  });
}

}  // namespace muster

extern "C" {

int muster_c_api_version(void) {
  return MUSTER_C_API_VERSION;
}

const char* muster_version(void) {
  return muster::version();
}

const char* muster_last_error(void) {
  return muster::t_last_error;
}

void muster_free(char* text) {
  std::free(text);
}

}  // extern "C"
