// The example's data: a text as tokens, one for each character (byte) that occurs in it, and
// windows of them.
#pragma once

#include <muster/base/error.h>
#include <muster/base/hex.h>
#include <muster/base/strings.h>
#include <muster/checkpoint/saved_state.h>
#include <muster/data/gzip.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

class Text {
 public:
  // Reads a file, plain or gzip. Throws: io, invalid_argument when it cannot be read, or is shorter
  // than 10 * (context + 1): its last tenth validates, and a window is the context and the
  // character after it.
  Text(const std::string& path, int64_t context)
      : characters_(muster::read_data_file(path, kMaxBytes)) {
    const int64_t least = 10 * (context + 1);
    if (const auto size = static_cast<int64_t>(characters_.size()); size < least) {
      throw muster::Error(muster::ErrorCode::invalid_argument,
                          muster::cat("text: expected at least ",
                                      least,
                                      " characters in '",
                                      path,
                                      "' for a context of ",
                                      context,
                                      ", got ",
                                      size,
                                      "; give a longer --text or a smaller --context"));
    }
    std::array<bool, 256> occurs{};
    for (const char c : characters_)
      occurs[static_cast<unsigned char>(c)] = true;
    for (size_t byte = 0; byte < occurs.size(); ++byte) {
      if (!occurs[byte])
        continue;
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
        throw muster::Error(muster::ErrorCode::invalid_argument,
                            muster::cat("text: expected only characters of the text, got '",
                                        muster::escaped({&c, 1}),
                                        "' in '",
                                        muster::escaped(characters),
                                        "'; leave it out of --prompt, or give another --text"));
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

  // What a checkpoint keeps of it: another text's tokens mean other characters. Throws:
  // invalid_argument.
  muster::SavedState state() const {
    return {.numbers = {}, .tensors = {{"alphabet", alphabet()}}};
  }
  void load_state(const muster::SavedState& state) const {
    if (torch::equal(state.tensor("text", "alphabet"), alphabet()))
      return;
    throw muster::Error(
        muster::ErrorCode::invalid_argument,
        "--resume: expected the characters of the text that was trained on before, got "
        "others; give that --text, or another --run-dir");
  }
  torch::Tensor alphabet() const {
    const std::vector<uint8_t> bytes(alphabet_.begin(), alphabet_.end());
    return torch::tensor(bytes, torch::kByte);
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

// Windows of a text, as many as there are places to begin, or `most` of them, spread evenly. A data
// set of the loader's.
class Windows {
 public:
  // Shapes: both [windows, context] int64; targets are the tokens after.
  struct Example {
    torch::Tensor tokens;
    torch::Tensor targets;
  };

  Windows(torch::Tensor text, int64_t context, int64_t most = 0)
      : text_(std::move(text)), context_(context) {
    const int64_t places = text_.size(0) - context;
    size_ = most == 0 ? places : std::min((text_.size(0) - 1) / context, most);
    apart_ = most == 0 ? 1 : (text_.size(0) - 1) / size_;
  }

  int64_t size() const { return size_; }
  Example get_batch(const torch::Tensor& windows, bool /*pinned*/) const {
    const auto places = (windows * apart_).unsqueeze(1) + torch::arange(context_ + 1);
    const auto both = text_.index({places}).to(torch::kLong);
    return {both.narrow(1, 0, context_), both.narrow(1, 1, context_)};
  }

 private:
  torch::Tensor text_;
  int64_t context_;
  int64_t size_;
  int64_t apart_;
};
