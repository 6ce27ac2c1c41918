// Parses the header that numpy writes: a magic, a version, the length of a text, and the text,
// which is a Python dictionary. Only its three keys are understood; anything else is refused by
// name, with the remedy in numpy.
#include "muster/data/readers/npy_header.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/hex.h"
#include "muster/base/lookup.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxDimensions = 64;
// By kind and bytes. Each of these has a type in LibTorch, on which npy.cc relies.
constexpr std::string_view kKnown = "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16";
static_assert(std::endian::native == std::endian::little, "'<' is this machine's byte order");

constexpr FileRefusal refuse_npy{"npy", "save it again with numpy.save"};

// The header's text is a dictionary as Python writes it, of three values in any order:
// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  NpyHeader parse() {
    NpyHeader header;
    std::set<std::string_view> seen;
    expect('{');
    while (!takes('}')) {
      const std::string_view key = quoted();
      expect(':');
      const auto read = lookup(kReaders, key, nullptr);
      if (read == nullptr)
        refuse_npy(name_, "the keys descr, fortran_order and shape", in_quotes(escaped(key)));
      (this->*read)(header);
      seen.insert(key);
      takes(',');
    }
    if (seen.size() < std::size(kReaders))
      refuse_npy(name_, "a header with descr, fortran_order and shape", "one without");
    return header;
  }

 private:
  using Reader = void (HeaderText::*)(NpyHeader&);
  static const std::pair<std::string_view, Reader> kReaders[3];

  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
  }
  // The result says whether the next character is `c`, which is passed over only then.
  bool takes(char c) {
    skip_blanks();
    const bool is_next = rest_.starts_with(c);
    rest_.remove_prefix(is_next ? 1 : 0);
    return is_next;
  }
  void expect(char c) {
    if (!takes(c))
      refuse_npy(name_, cat("'", c, "' in the header"), in_quotes(escaped(rest_)));
  }

  // Takes a text in single or double quotes.
  std::string_view quoted() {
    skip_blanks();
    const char quote = rest_.empty() ? '\0' : rest_[0];
    const bool begins = quote == '\'' || quote == '"';
    const size_t end = begins ? rest_.find(quote, 1) : npos;
    if (end == npos)
      refuse_npy(name_, "a name in quotes", in_quotes(escaped(rest_)));
    const std::string_view inside = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return inside;
  }

  // Takes True or False, as Python writes them.
  void read_order(NpyHeader& header) {
    skip_blanks();
    header.fortran_order = rest_.starts_with("True");
    const std::string_view word = header.fortran_order ? "True" : "False";
    if (rest_.starts_with(word))
      return rest_.remove_prefix(word.size());
    refuse_npy(name_, "True or False for fortran_order", in_quotes(escaped(rest_)));
  }

  // Python writes one extent as (3,), so a comma may stand before the end.
  void read_shape(NpyHeader& header) {
    Int64s& found = header.shape;
    found.clear();
    expect('(');
    while (!takes(')')) {
      skip_blanks();
      const size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
      const auto extent = parse_int(rest_.substr(0, digits));
      if (!extent || found.size() == kMaxDimensions)
        refuse_npy(name_,
                   cat("a shape of at most ", kMaxDimensions, " whole numbers"),
                   in_quotes(escaped(rest_)));
      found.push_back(*extent);
      rest_.remove_prefix(digits);
      takes(',');
    }
  }

  // <f4: byte order, kind, bytes.
  void read_type(NpyHeader& header) {
    skip_blanks();
    if (rest_.starts_with('['))
      refuse_npy(name_, "one type of numbers", "records", "save each field in a file of its own");
    const std::string_view text = quoted();
    const auto size = text.size() < 3 ? std::nullopt : parse_int(text.substr(2));
    header.kind = text.size() < 3 ? '\0' : text[1];
    header.item_size = size.value_or(0);
    if (text.size() > 1 && (text[1] == 'O' || text[0] == 'O'))
      refuse_npy(name_,
                 "numbers",
                 "Python objects, which would be executed",
                 "save it with another dtype");
    if (!contains(split(kKnown, ' '), cat(header.kind, header.item_size)))
      refuse_npy(name_,
                 "bool, integers of 1 to 8, floats of 2 to 8, or complex numbers of 8 or 16 bytes",
                 cat("dtype '", escaped(text), "'"),
                 "convert it with astype()");
    if (text[0] == '>' && header.item_size > 1)
      refuse_npy(name_,
                 "numbers of this machine's byte order",
                 cat("dtype '", escaped(text), "'"),
                 "convert it with astype(x.dtype.newbyteorder('<'))");
  }

  std::string_view rest_;
  const std::string& name_;
};

const std::pair<std::string_view, HeaderText::Reader> HeaderText::kReaders[] = {
    {"descr", &HeaderText::read_type},
    {"fortran_order", &HeaderText::read_order},
    {"shape", &HeaderText::read_shape},
};

// The data must be exactly as long as the header says. Where an extent is 0, the others must still
// fit: LibTorch's strides are products of them too.
void check_size(const NpyHeader& header, std::string_view file, const std::string& name) {
  int64_t bytes = header.item_size;
  bool too_many = false;
  bool none = false;
  for (const int64_t extent : header.shape) {
    none |= extent == 0;
    too_many |= __builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes);
  }
  const int64_t got = std::ssize(file.substr(header.data_begin));
  const auto shape = cat(join(header.shape, "x"), " of ", header.item_size, " bytes");
  if (too_many)
    refuse_npy(name, "a shape that fits in 63 bits", shape);
  if (none)
    bytes = 0;
  if (got != bytes)
    refuse_npy(name,
               cat(bytes, " bytes of data, as its header says (", shape, ")"),
               cat(got, got < bytes ? " (cut short)" : " (bytes after the end)"));
}

}  // namespace

NpyHeader parse_npy_header(std::string_view file, const std::string& name) {
  if (!file.starts_with(kMagic))
    refuse_npy(
        name, "a .npy file", cat("a file that begins with '", escaped(file.substr(0, 8)), "'"));
  const auto byte = [&](size_t at) -> size_t {
    return static_cast<unsigned char>(file[at]);
  };
  const size_t version = file.size() > 7 ? byte(6) : 0;
  // Version 1 has a length of 2 bytes, the later ones have 4, and all are little-endian.
  const size_t text_begin = version == 1 ? 10 : 12;
  if (version < 1 || version > 3 || file.size() < text_begin)
    refuse_npy(name,
               "a whole header of version 1, 2 or 3",
               cat(file.size(), " bytes of version ", version));
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1)
    length |= byte(10) << 16 | byte(11) << 24;
  if (length > file.size() - text_begin)
    refuse_npy(name, "a whole header", "a file cut short in it");
  NpyHeader header = HeaderText(file.substr(text_begin, length), name).parse();
  header.data_begin = text_begin + length;
  check_size(header, file, name);
  return header;
}

}  // namespace muster
