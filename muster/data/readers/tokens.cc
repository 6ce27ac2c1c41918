// Windows of a mapped file of tokens. A window reads one token more than its length: the targets
// are the tokens, shifted by one.
#include "muster/data/readers/tokens.h"

#include <ATen/ops/empty.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

[[noreturn]] void refuse_tokens(const std::string& path,
                                const std::string& expected,
                                const std::string& got,
                                const char* next) {
  throw Error(ErrorCode::invalid_argument,
              cat("tokens: expected ", expected, " in '", path, "', got ", got, "; ", next));
}

}  // namespace

TokenFile::TokenFile(const std::string& path,
                     TokenType type,
                     int64_t context,
                     const TokenFileOptions& options)
    : file_(std::make_shared<MappedFile>(path)), type_(type), context_(context), options_(options) {
  if (context < 1)
    refuse_tokens(
        path, "a context of at least 1 token", cat(context), "pass the model's context length");
  tokens_ = count_tokens(file_->bytes(), type, path);
  if (tokens_ <= context)
    refuse_tokens(path,
                  cat("more than ", context, " tokens, one window and its targets"),
                  cat(tokens_),
                  "pass a smaller context");
  // The last token can only be a target, so it begins no window.
  const int64_t consecutive = (tokens_ - 1) / context;
  windows_ = options.random && options.windows > 0 ? options.windows : consecutive;
}

// The result is a copy, so it outlives the file.
at::Tensor TokenFile::tokens(int64_t begin, int64_t count) const {
  check_token_part(tokens_, begin, count, file_->path());
  auto found = at::empty({count}, at::kLong);
  const int64_t largest = read_tokens(
      file_->bytes(), type_, file_->path(), begin, count, found.mutable_data_ptr<int64_t>());
  if (options_.vocabulary > 0 && largest >= options_.vocabulary)
    refuse_tokens(file_->path(),
                  cat("tokens below ", options_.vocabulary),
                  cat(largest, " between token ", begin, " and ", begin + count),
                  "see whether it is of this type and this vocabulary");
  return found;
}

// The sample's generator chooses the place of a random window, and the index does not.
TokenWindow TokenFile::get(int64_t index, Generator& rng) const {
  if (index < 0 || index >= windows_)
    refuse_tokens(file_->path(),
                  cat("a window from 0 to ", windows_ - 1),
                  cat(index),
                  "ask for one that exists");
  const int64_t begin = options_.random ? rng.integer(tokens_ - context_) : index * context_;
  const auto window = tokens(begin, context_ + 1);
  return {.tokens = window.narrow(0, 0, context_), .targets = window.narrow(0, 1, context_)};
}

}  // namespace muster
