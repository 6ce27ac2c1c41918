// The example's data: a text as tokens, one for each character (byte) that occurs in it, and windows of them.
#pragma once

#include <muster/base/error.h>
#include <muster/base/strings.h>
#include <muster/data/gzip.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>
#include <vector>

class Text {
 public:
  // Reads a file, plain or gzip. Throws: io, invalid_argument when it cannot be read, or is shorter than
  // 10 * (context + 1): its last tenth validates, and a window is the context and the character after it.
  Text(const std::string& path, int64_t context) : characters_(muster::read_data_file(path, kMaxBytes)) {
    const int64_t least = 10 * (context + 1);
    if (const auto size = static_cast<int64_t>(characters_.size()); size < least) {
      throw muster::Error(
          muster::ErrorCode::invalid_argument,
          muster::cat("text: expected at least ", least, " characters in '", path, "' for a context of ",
                      context, ", got ", size, "; give a longer --text or a smaller --context"));
    }
    std::array<bool, 256> occurs{};
    for (const char c : characters_) occurs[static_cast<unsigned char>(c)] = true;
    for (size_t byte = 0; byte < occurs.size(); ++byte) {
      if (!occurs[byte]) continue;
      token_of_[byte] = static_cast<int>(alphabet_.size());
      alphabet_ += static_cast<char>(byte);
    }
  }

  // Throws: invalid_argument naming the first character that the text does not have.
  torch::Tensor encode(std::string_view characters) const {
    auto tokens = torch::empty({static_cast<int64_t>(characters.size())}, torch::kByte);
    auto* out = tokens.data_ptr<uint8_t>();
    for (const char c : characters) {
      const int token = token_of_[static_cast<unsigned char>(c)];
      if (token < 0) {
        throw muster::Error(
            muster::ErrorCode::invalid_argument,
            muster::cat("text: expected characters that it has, got '", muster::shown({&c, 1}), "' in '",
                        muster::shown(characters), "'; leave it out of --prompt, or give another --text"));
      }
      *out++ = static_cast<uint8_t>(token);
    }
    return tokens;
  }

  std::string decode(const torch::Tensor& tokens) const {
    std::string characters;
    for (int64_t i = 0; i < tokens.size(0); ++i)
      characters += alphabet_[static_cast<size_t>(tokens[i].item<int64_t>())];
    return characters;
  }

  // Shapes: [characters] uint8, on the CPU: the first nine tenths, and the rest.
  torch::Tensor train() const { return encode(std::string_view(characters_).substr(0, split())); }
  torch::Tensor validation() const { return encode(std::string_view(characters_).substr(split())); }

  int64_t vocabulary() const { return static_cast<int64_t>(alphabet_.size()); }
  // The first line, or what a line of a page holds of it.
  std::string opening() const {
    return characters_.substr(0, std::min<size_t>(characters_.find('\n'), 79) + 1);
  }

  // Tells whether another text has the same tokens: "10,32,33,…".
  std::string alphabet() const {
    std::vector<int> bytes;
    for (const char c : alphabet_) bytes.push_back(static_cast<unsigned char>(c));
    return muster::join(bytes, ",");
  }

 private:
  static constexpr uint64_t kMaxBytes = 1U << 30;
  size_t split() const { return characters_.size() - characters_.size() / 10; }

  std::string characters_;
  std::string alphabet_;
  std::array<int, 256> token_of_ = [] {
    std::array<int, 256> none{};
    none.fill(-1);
    return none;
  }();
};

// Shapes: both [windows, context] int64; targets are the tokens after.
struct Windows {
  torch::Tensor tokens;
  torch::Tensor targets;
};

inline Windows windows_at(const torch::Tensor& text, const torch::Tensor& starts, int64_t context) {
  const auto offsets = torch::arange(context + 1, starts.options());
  const auto both = text.index({(starts.unsqueeze(1) + offsets).to(text.device())}).to(torch::kLong);
  return {both.narrow(1, 0, context), both.narrow(1, 1, context)};
}

// Where a rank's windows of a step begin: its own in every step, and the same when the step is done again.
inline torch::Tensor random_starts(const torch::Tensor& text, int64_t context, int64_t count, int64_t seed,
                                   int rank, int64_t step) {
  std::seed_seq mixed{seed, seed >> 32, static_cast<int64_t>(rank), step, step >> 32};
  std::mt19937_64 generator(mixed);
  std::uniform_int_distribution<int64_t> anywhere(0, text.size(0) - context - 1);
  std::vector<int64_t> starts(static_cast<size_t>(count));
  for (auto& start : starts) start = anywhere(generator);
  return torch::tensor(starts);
}
