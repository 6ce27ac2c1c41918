// A pickle is a program for a machine with a stack. This machine knows the instructions that make
// values, and takes calls of functions as values too.
#include "muster/checkpoint/files/pickle.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
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
      const Step step = lookup(kInstructions, code, nullptr);
      if (step == nullptr)
        refuse(cat("instruction ", int{code}));
      (this->*step)();
    }
    pickle_.root = pop();
    pickle_.bytes = at_;
    return std::move(pickle_);
  }

 private:
  using Step = void (Unpickler::*)();
  static const std::pair<unsigned char, Step> kInstructions[47];

  [[noreturn]] void refuse(const std::string& got) const {
    throw invalid_argument("torch file: expected a pickle as torch.save writes it in '",
                           file_,
                           "', got ",
                           got,
                           " at byte ",
                           at_,
                           "; it is damaged or of another kind");
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
    if (end == npos)
      refuse("a line without an end");
    std::string line(take(end - at_));
    take(1);
    return line;
  }

  void push(PickledValue value) {
    pickle_.values.push_back(std::move(value));
    stack_.push_back(&pickle_.values.back());
  }
  void push_number(int64_t number) { push({.kind = Kind::number, .number = number}); }
  void push_text(std::string_view text) { push({.kind = Kind::text, .text = std::string(text)}); }
  void push_list(std::vector<const PickledValue*> items) {
    push({.kind = Kind::list, .items = std::move(items)});
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

  // Of any number of bytes; only what fits an int64 has a value that anyone asks for.
  void push_long() {
    const uint64_t size = take_number(1);
    const std::string_view bytes = take(size);
    if (size == 0)
      return push_number(0);
    if (size > sizeof(int64_t))
      return push_text(bytes);
    const signed char highest = bytes.back();
    int64_t number = highest < 0 ? -1 : 0;
    std::memcpy(&number, bytes.data(), size);
    push_number(number);
  }

  // Big-endian, unlike everything else.
  void push_real() {
    uint64_t bits = 0;
    for (const unsigned char byte : take(8))
      bits = bits << 8U | byte;
    double real = 0;
    std::memcpy(&real, &bits, sizeof(real));
    push({.kind = Kind::real, .real = real});
  }

  // Items of an object of some class have nowhere to go.
  void add(Kind kind, const Items& items) {
    PickledValue& to = top();
    if (to.kind == kind)
      append_all(to.items, items);
  }

  void push_signed() {
    const int32_t number = take_number(4);
    push_number(number);
  }

  void read_global() {
    const std::string module = take_line();
    push_global(module, take_line());
  }

  void pop_global() {
    const std::string name = pop()->text, module = pop()->text;
    push_global(module, name);
  }

  void call() { push_call(pop_items(2)); }
  void call_by_keys() {
    pop();
    call();
  }

  void memoize() { memo_[memo_.size()] = &top(); }
  template <size_t bytes>
  void keep_in_memo() {
    memo_[take_number(bytes)] = &top();
  }
  template <size_t bytes>
  void push_from_memo() {
    const uint64_t number = take_number(bytes);
    PickledValue* const found = find_or(memo_, number);
    if (found == nullptr)
      refuse(cat("a value that is not in the memo, ", number));
    stack_.push_back(found);
  }

  template <size_t bytes>
  void pass_over() {
    take(bytes);
  }
  template <Kind kind>
  void push_empty() {
    push({.kind = kind});
  }
  template <int64_t number>
  void push_known() {
    push_number(number);
  }
  template <size_t bytes>
  void push_whole() {
    push_number(take_number(bytes));
  }
  template <size_t bytes_of_size>
  void text_of() {
    push_text(take(take_number(bytes_of_size)));
  }
  template <size_t count>
  void list_of() {
    push_list(pop_items(count));
  }
  void list_to_mark() { push_list(pop_to_mark()); }
  template <Kind kind, size_t count>
  void add_some() {
    add(kind, pop_items(count));
  }
  template <Kind kind>
  void add_to_mark() {
    add(kind, pop_to_mark());
  }
  void drop() { pop(); }
  void push_again() { stack_.push_back(&top()); }
  void push_persistent() { push({.kind = Kind::persistent, .items = pop_items(1)}); }

  void push_global(const std::string& module, const std::string& name) {
    if (module.size() + name.size() > kLongestGlobal)
      refuse("a longer name than any function has");
    push({.kind = Kind::global, .text = cat(module, " ", name)});
  }

  // An OrderedDict, which a state_dict is, is made of nothing or of a list of pairs.
  void push_call(const Items& items) {
    if (!items[0]->is_global("collections OrderedDict"))
      return push({.kind = Kind::call, .items = items});
    PickledValue dict{.kind = Kind::dict};
    if (!items[1]->items.empty()) {
      copied_ += items[1]->items[0]->items.size();
      if (copied_ > bytes_.size())
        refuse("more pairs than it has bytes");
      for (const PickledValue* pair : items[1]->items[0]->items)
        if (pair->items.size() == 2)
          append_all(dict.items, pair->items);
    }
    push(std::move(dict));
  }

  std::string_view bytes_;
  const std::string& file_;
  size_t at_ = 0;
  size_t copied_ = 0;  // pairs of dictionaries: a list that is made once may be copied often
  Pickle pickle_;
  std::vector<PickledValue*> stack_;
  std::map<uint64_t, PickledValue*> memo_;
};

// What each instruction does. "SHORT" and "LONG" ones differ in the bytes of the size.
const std::pair<unsigned char, Unpickler::Step> Unpickler::kInstructions[] = {
    // Values.
    {0x80, &Unpickler::pass_over<1>},  // PROTO
    {0x95, &Unpickler::pass_over<8>},  // FRAME
    {'(', &Unpickler::push_empty<Kind::mark>},
    {'N', &Unpickler::push_empty<Kind::none>},
    {0x88, &Unpickler::push_known<1>},
    {0x89, &Unpickler::push_known<0>},
    {'K', &Unpickler::push_whole<1>},
    {'M', &Unpickler::push_whole<2>},
    {'J', &Unpickler::push_signed},
    {0x8a, &Unpickler::push_long},
    {'G', &Unpickler::push_real},
    // Texts: BINUNICODE, BINBYTES, BINSTRING, then the short ones and the long ones.
    {'X', &Unpickler::text_of<4>},
    {'B', &Unpickler::text_of<4>},
    {'T', &Unpickler::text_of<4>},
    {0x8c, &Unpickler::text_of<1>},
    {'C', &Unpickler::text_of<1>},
    {'U', &Unpickler::text_of<1>},
    {0x8d, &Unpickler::text_of<8>},
    {0x8e, &Unpickler::text_of<8>},
    // Collections.
    {'}', &Unpickler::push_empty<Kind::dict>},
    {']', &Unpickler::list_of<0>},
    {')', &Unpickler::list_of<0>},
    {0x8f, &Unpickler::list_of<0>},  // EMPTY_SET
    {'t', &Unpickler::list_to_mark},
    {0x91, &Unpickler::list_to_mark},  // FROZENSET
    {0x85, &Unpickler::list_of<1>},
    {0x86, &Unpickler::list_of<2>},
    {0x87, &Unpickler::list_of<3>},
    {'a', &Unpickler::add_some<Kind::list, 1>},
    {'e', &Unpickler::add_to_mark<Kind::list>},
    {0x90, &Unpickler::add_to_mark<Kind::list>},  // ADDITEMS
    {'s', &Unpickler::add_some<Kind::dict, 2>},
    {'u', &Unpickler::add_to_mark<Kind::dict>},
    // The memo, and the stack itself.
    {'q', &Unpickler::keep_in_memo<1>},
    {'r', &Unpickler::keep_in_memo<4>},
    {0x94, &Unpickler::memoize},
    {'h', &Unpickler::push_from_memo<1>},
    {'j', &Unpickler::push_from_memo<4>},
    {'0', &Unpickler::drop},
    {'2', &Unpickler::push_again},
    // Names of functions, and calls of them.
    {'c', &Unpickler::read_global},
    {0x93, &Unpickler::pop_global},  // STACK_GLOBAL
    {'R', &Unpickler::call},
    {0x81, &Unpickler::call},          // NEWOBJ
    {0x92, &Unpickler::call_by_keys},  // NEWOBJ_EX
    {'b', &Unpickler::drop},           // BUILD: the state of an object
    {'Q', &Unpickler::push_persistent},
};

}  // namespace

Pickle read_pickle(std::string_view bytes, const std::string& file) {
  return Unpickler(bytes, file).run();
}

}  // namespace muster
