// Text as token ids, for language models: windows cut from a file of consecutive tokens. The file
// is mapped, so it may be larger than memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "muster/data/dataset.h"
#include "muster/data/readers/mapped_file.h"
#include "muster/data/readers/token_values.h"

namespace muster {

// Shapes: both [context] int64; the targets are the tokens shifted by one.
struct TokenWindow {
  at::Tensor tokens;
  at::Tensor targets;
};

struct TokenFileOptions {
  // false: windows follow each other, and an epoch reads every token once (except up to `context`
  // at the end). true: each starts at a random place, chosen by the sample's Generator.
  bool random = false;
  int64_t windows = 0;     // per epoch, with `random`; 0: as many as would follow each other
  int64_t vocabulary = 0;  // a token at or above it is an error that names the place; 0: any
};

class TokenFile : public Dataset<TokenWindow> {
 public:
  // Throws: io if the file cannot be read; invalid_argument if it is not a whole number of tokens
  // or is shorter than one window, if it has a head (.npy, llm.c, archives) or every second token
  // is 0, as where numbers are wider than `type`; and if context is less than 1.
  TokenFile(const std::string& path,
            TokenType type,
            int64_t context,
            const TokenFileOptions& options = {});

  int64_t size() const override { return windows_; }
  TokenWindow get(int64_t index, Generator& rng) const override;
  int64_t num_tokens() const { return tokens_; }

  // The tokens from `begin` on. Shapes: [count] int64. Throws: invalid_argument if there are fewer.
  at::Tensor tokens(int64_t begin, int64_t count) const;

 private:
  void check_width() const;

  std::shared_ptr<const MappedFile> file_;
  TokenType type_;
  int64_t context_;
  TokenFileOptions options_;
  int64_t tokens_ = 0;
  int64_t windows_ = 0;
};

}  // namespace muster
