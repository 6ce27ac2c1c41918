#include "muster/data/readers/tokens.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

[[noreturn]] void refuse_tokens(const std::string& path, const std::string& expected, const std::string& got,
                                const char* next) {
  throw Error(ErrorCode::invalid_argument,
              cat("tokens: expected ", expected, " in '", path, "', got ", got, "; ", next));
}

int64_t bytes_of_token(TokenType type) {
  return type == TokenType::uint16 ? 2 : 4;
}

// Gives the largest of them.
template <class Token>
uint32_t widen(const char* from, int64_t count, int64_t* to) {
  const auto* const tokens = reinterpret_cast<const Token*>(from);  // aligned as the pages are
  Token largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = tokens[i];
    largest = std::max(largest, tokens[i]);
  }
  return largest;
}

}  // namespace

TokenFile::TokenFile(const std::string& path, TokenType type, int64_t context,
                     const TokenFileOptions& options)
    : file_(std::make_shared<MappedFile>(path)), type_(type), context_(context), options_(options) {
  const int64_t bytes = static_cast<int64_t>(file_->bytes().size());
  const int64_t each = bytes_of_token(type);
  if (context < 1)
    refuse_tokens(path, "a context of at least 1 token", cat(context), "pass the model's context length");
  if (bytes % each != 0)
    refuse_tokens(path, cat("a whole number of tokens of ", each, " bytes"), cat(bytes, " bytes"),
                  "is it whole, and of this type?");
  tokens_ = bytes / each;
  if (tokens_ <= context)
    refuse_tokens(path, cat("more than ", context, " tokens, one window and its targets"), cat(tokens_),
                  "pass a smaller context");
  const int64_t consecutive = (tokens_ - 1) / context;
  windows_ = options.random && options.windows > 0 ? options.windows : consecutive;
}

at::Tensor TokenFile::tokens(int64_t begin, int64_t count) const {
  if (begin < 0 || count < 0 || count > tokens_ || begin > tokens_ - count)
    refuse_tokens(file_->path(), cat("a part of ", tokens_, " tokens"), cat(count, " from ", begin),
                  "ask for tokens that there are");
  auto found = at::empty({count}, at::kLong);
  auto* const to = found.mutable_data_ptr<int64_t>();
  const char* const from = file_->data() + begin * bytes_of_token(type_);
  const int64_t largest =
      type_ == TokenType::uint16 ? widen<uint16_t>(from, count, to) : widen<uint32_t>(from, count, to);
  if (options_.vocabulary > 0 && largest >= options_.vocabulary)
    refuse_tokens(file_->path(), cat("tokens below ", options_.vocabulary),
                  cat(largest, " between token ", begin, " and ", begin + count),
                  "is it of this type, and of this vocabulary?");
  return found;
}

TokenWindow TokenFile::get(int64_t index, Generator& rng) const {
  if (index < 0 || index >= windows_)
    refuse_tokens(file_->path(), cat("a window from 0 to ", windows_ - 1), cat(index),
                  "ask for one that there is");
  const int64_t begin = options_.random ? rng.integer(tokens_ - context_) : index * context_;
  const auto window = tokens(begin, context_ + 1);
  return {.tokens = window.narrow(0, 0, context_), .targets = window.narrow(0, 1, context_)};
}

}  // namespace muster
