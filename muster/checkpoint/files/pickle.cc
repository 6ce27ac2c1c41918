// A pickle is a program for a machine with a stack. This machine knows the instructions that make
// values, and takes calls of functions as values too.
#include "muster/checkpoint/files/pickle.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using Kind = PickledValue::Kind;

constexpr size_t kLongestGlobal = 1000;

class Unpickler {
 public:
  Unpickler(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Pickle run() {
    while (true) {
      const unsigned char code = take(1)[0];
      if (code == '.')
        break;
      const bool is_known = makes_value(code) || makes_text(code) || makes_collection(code) ||
                            uses_memo(code) || makes_call(code);
      if (!is_known)
        refuse(cat("instruction ", int{code}));
    }
    pickle_.root = pop();
    pickle_.bytes = at_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void refuse(const std::string& got) const {
    throw Error(ErrorCode::invalid_argument,
                cat("torch file: expected a pickle as torch.save writes it in '",
                    file_,
                    "', got ",
                    got,
                    " at byte ",
                    at_,
                    "; it is damaged or of another kind"));
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_)
      refuse("its end");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  // A little-endian number without a sign.
  uint64_t take_number(size_t size) {
    uint64_t number = 0;
    std::memcpy(&number, take(size).data(), size);
    return number;
  }

  std::string take_line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos)
      refuse("a line without an end");
    std::string line(take(end - at_));
    take(1);
    return line;
  }

  bool push(PickledValue value) {
    pickle_.values.push_back(std::move(value));
    stack_.push_back(&pickle_.values.back());
    return true;
  }
  bool push_number(int64_t number) { return push({.kind = Kind::number, .number = number}); }
  bool push_text(std::string_view text) {
    return push({.kind = Kind::text, .text = std::string(text)});
  }

  PickledValue* pop() {
    if (stack_.empty())
      refuse("an empty stack");
    PickledValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickledValue& top() {
    if (stack_.empty())
      refuse("an empty stack");
    return *stack_.back();
  }

  using Items = std::vector<const PickledValue*>;
  Items pop_items(size_t count) {
    Items items(count);
    for (size_t i = count; i-- > 0;)
      items[i] = pop();
    return items;
  }
  Items pop_to_mark() {
    Items items;
    while (top().kind != Kind::mark)
      items.push_back(pop());
    pop();
    std::ranges::reverse(items);
    return items;
  }

  bool makes_value(unsigned char code) {
    switch (code) {
      case 0x80:  // PROTO
        return !take(1).empty();
      case 0x95:  // FRAME
        return !take(8).empty();
      case '(':
        return push({.kind = Kind::mark});
      case 'N':
        return push({});
      case 0x88:
        return push_number(1);
      case 0x89:
        return push_number(0);
      case 'K':
        return push_number(take_number(1));
      case 'M':
        return push_number(take_number(2));
      case 'J': {
        const int32_t number = take_number(4);
        return push_number(number);
      }
      case 0x8a:
        return push_long(take_number(1));
      case 'G':
        return push_real();
      default:
        return false;
    }
  }

  // Of any number of bytes; only what fits an int64 has a value that anyone asks for.
  bool push_long(uint64_t size) {
    const std::string_view bytes = take(size);
    if (size == 0)
      return push_number(0);
    if (size > sizeof(int64_t))
      return push_text(bytes);
    const signed char highest = bytes.back();
    int64_t number = highest < 0 ? -1 : 0;
    std::memcpy(&number, bytes.data(), size);
    return push_number(number);
  }

  // Big-endian, unlike everything else.
  bool push_real() {
    uint64_t bits = 0;
    for (const unsigned char byte : take(8))
      bits = bits << 8U | byte;
    double real = 0;
    std::memcpy(&real, &bits, sizeof(real));
    return push({.kind = Kind::real, .real = real});
  }

  bool makes_text(unsigned char code) {
    switch (code) {
      case 'X':  // BINUNICODE, BINBYTES, BINSTRING
      case 'B':
      case 'T':
        return push_text(take(take_number(4)));
      case 0x8c:  // the short ones
      case 'C':
      case 'U':
        return push_text(take(take_number(1)));
      case 0x8d:  // the long ones
      case 0x8e:
        return push_text(take(take_number(8)));
      default:
        return false;
    }
  }

  bool makes_collection(unsigned char code) {
    switch (code) {
      case '}':
        return push({.kind = Kind::dict});
      case ']':
      case ')':
      case 0x8f:  // EMPTY_SET
        return push({.kind = Kind::list});
      case 't':
      case 0x91:  // FROZENSET
        return push({.kind = Kind::list, .items = pop_to_mark()});
      case 0x85:
      case 0x86:
      case 0x87:
        return push({.kind = Kind::list, .items = pop_items(code - 0x84U)});
      case 'a':
        return add(Kind::list, pop_items(1));
      case 'e':
      case 0x90:  // ADDITEMS
        return add(Kind::list, pop_to_mark());
      case 's':
        return add(Kind::dict, pop_items(2));
      case 'u':
        return add(Kind::dict, pop_to_mark());
      default:
        return false;
    }
  }

  // Items of an object of some class have nowhere to go.
  bool add(Kind kind, const Items& items) {
    PickledValue& to = top();
    if (to.kind == kind)
      to.items.insert(to.items.end(), items.begin(), items.end());
    return true;
  }

  bool uses_memo(unsigned char code) {
    switch (code) {
      case 'q':
        return keep_in_memo(take_number(1));
      case 'r':
        return keep_in_memo(take_number(4));
      case 0x94:  // MEMOIZE
        return keep_in_memo(memo_.size());
      case 'h':
        return push_from_memo(take_number(1));
      case 'j':
        return push_from_memo(take_number(4));
      case '0':
        return pop() != nullptr;
      case '2':
        stack_.push_back(&top());
        return true;
      default:
        return false;
    }
  }

  bool keep_in_memo(uint64_t number) {
    memo_[number] = &top();
    return true;
  }

  bool push_from_memo(uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end())
      refuse(cat("a value that is not in the memo, ", number));
    stack_.push_back(found->second);
    return true;
  }

  bool makes_call(unsigned char code) {
    switch (code) {
      case 'c': {
        const std::string module = take_line();
        return push_global(module, take_line());
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string name = pop()->text, module = pop()->text;
        return push_global(module, name);
      }
      case 'R':
      case 0x81:  // NEWOBJ
        return push_call(pop_items(2));
      case 0x92:  // NEWOBJ_EX
        pop();
        return push_call(pop_items(2));
      case 'b':  // BUILD: the state of an object
        return pop() != nullptr;
      case 'Q':
        return push({.kind = Kind::persistent, .items = pop_items(1)});
      default:
        return false;
    }
  }

  bool push_global(const std::string& module, const std::string& name) {
    if (module.size() + name.size() > kLongestGlobal)
      refuse("a longer name than any function has");
    return push({.kind = Kind::global, .text = cat(module, " ", name)});
  }

  // An OrderedDict, which a state_dict is, is made of nothing or of a list of pairs.
  bool push_call(const Items& items) {
    if (!items[0]->is_global("collections OrderedDict"))
      return push({.kind = Kind::call, .items = items});
    PickledValue dict{.kind = Kind::dict};
    if (!items[1]->items.empty()) {
      copied_ += items[1]->items[0]->items.size();
      if (copied_ > bytes_.size())
        refuse("more pairs than it has bytes");
      for (const PickledValue* pair : items[1]->items[0]->items)
        if (pair->items.size() == 2)
          dict.items.insert(dict.items.end(), pair->items.begin(), pair->items.end());
    }
    return push(std::move(dict));
  }

  std::string_view bytes_;
  const std::string& file_;
  size_t at_ = 0;
  size_t copied_ = 0;  // pairs of dictionaries: a list that is made once may be copied often
  Pickle pickle_;
  std::vector<PickledValue*> stack_;
  std::map<uint64_t, PickledValue*> memo_;
};

}  // namespace

Pickle read_pickle(std::string_view bytes, const std::string& file) {
  return Unpickler(bytes, file).run();
}

}  // namespace muster
