// Text as numbers, for language models: a file of tokens, one after the other, from which windows are cut.
// Mapped, so it may be larger than memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "muster/data/dataset.h"
#include "muster/data/readers/mapped_file.h"
#include "muster/data/readers/token_values.h"

namespace muster {

// Shapes: both [context] int64; targets are the tokens, one later.
struct TokenWindow {
  at::Tensor tokens;
  at::Tensor targets;
};

struct TokenFileOptions {
  // false: the windows lie one after the other, and an epoch reads every token once (up to `context` are left
  // over at the end). true: each begins anywhere, as the sample's Generator says.
  bool random = false;
  int64_t windows = 0;     // of an epoch, with `random`; 0: as many as lie one after the other
  int64_t vocabulary = 0;  // tokens from here on are an error that names the place; 0: any
};

class TokenFile : public Dataset<TokenWindow> {
 public:
  // Throws: io when the file cannot be read; invalid_argument when it has no whole number of tokens, or not
  // one window, or context is less than 1.
  TokenFile(const std::string& path, TokenType type, int64_t context, const TokenFileOptions& options = {});

  int64_t size() const override { return windows_; }
  TokenWindow get(int64_t index, Generator& rng) const override;
  int64_t num_tokens() const { return tokens_; }

  // The tokens from `begin` on. Shapes: [count] int64. Throws: invalid_argument when there are not as many.
  at::Tensor tokens(int64_t begin, int64_t count) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  TokenType type_;
  int64_t context_;
  TokenFileOptions options_;
  int64_t tokens_ = 0;
  int64_t windows_ = 0;
};

}  // namespace muster
