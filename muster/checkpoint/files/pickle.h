// The values in a Python pickle, without anything that a pickle can make Python do: what it would
// call is only named. Called by the reader of torch.save's files; knows no tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

struct PickledValue {
  enum class Kind {
    none,
    number,  // also True and False
    real,
    text,        // also bytes
    list,        // also tuples and sets: items
    dict,        // items: a key, its value, the next key, ...
    global,      // text: "torch._utils _rebuild_tensor_v2"
    call,        // items: what is called, and its arguments, a list
    persistent,  // items: the id of something outside of the pickle
    mark
  };
  Kind kind = Kind::none;
  int64_t number = 0;
  double real = 0;
  std::string text{};
  std::vector<const PickledValue*> items{};

  bool is_global(std::string_view name) const { return kind == Kind::global && text == name; }
};

struct Pickle {
  std::deque<PickledValue> values;  // all of them; they point to each other, also in circles
  const PickledValue* root = nullptr;
  size_t bytes = 0;  // that it takes
};

// Reads the pickle at the front of `bytes`, of protocols 2 to 5. `file` is what messages call it.
// Throws: invalid_argument if it is cut short, malformed, or uses what torch.save does not.
// Source: https://github.com/python/cpython/blob/main/Lib/pickletools.py
Pickle read_pickle(std::string_view bytes, const std::string& file);

}  // namespace muster
