// pugixml allocates for every element and attribute, so their marks are counted before it sees the
// text; and its own functions recurse, so depth is checked before anybody walks the tree.
#include "muster/device/readers/xml_file.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/readers/captured_host.h"
#include "muster/device/readers/xml_root.h"

namespace muster {
namespace {

constexpr int64_t kMaxMarks = 2'000'000;  // of '<' and of '=': they bound what pugixml allocates
constexpr size_t kMaxDepth = 128;

}  // namespace

XmlFile::XmlFile(const std::string& text, const std::string& what) : text_(text), what_(what) {
  check_bounds();
  const pugi::xml_parse_result result = document_.load_buffer(
      text.data(), text.size(), pugi::parse_minimal | pugi::parse_escapes, pugi::encoding_utf8);
  if (!result) {
    check_end();
    fail_at(result.offset, "XML", result.description());
  }
  check_depth();
  check_single();
}

// A copy or a capture may have been broken off; what has its end is wrong elsewhere.
void XmlFile::check_end() const {
  const auto end = cat("</", xml_root_name(text_), ">");
  if (!has_text(text_, end))
    fail_at(std::ssize(text_), cat("XML to its end, ", end), "a part of it; copy the file again");
}

// Several documents in one file come from output that was appended.
void XmlFile::check_single() const {
  const xml_node first = root();
  for (xml_node node = first.next_sibling(); node; node = node.next_sibling()) {
    if (node.type() != pugi::node_element)
      continue;
    fail(node,
         "one document in a file (several go into a folder, a file each)",
         cat("a second one, <", node.name(), ">"));
  }
}

// UTF-16 shows by its zero bytes, and is what editors on Windows may save.
void XmlFile::check_bounds() const {
  if (text_.size() > kMaxInventoryBytes) {
    fail_at(0, cat("at most ", kMaxInventoryBytes >> 20U, " MiB"), cat(text_.size(), " bytes"));
  }
  if (const size_t nul = text_.find('\0'); nul != npos) {
    fail_at(nul, "XML in UTF-8", "a zero byte (UTF-16? convert it with iconv)");
  }
  for (const char mark : {'<', '='}) {
    const int64_t count = std::count(text_.begin(), text_.end(), mark);
    if (count > kMaxMarks)
      fail_at(0, cat("at most ", kMaxMarks, " '", mark, "'"), cat(count));
  }
}

// Walks the whole tree without recursion: down to the first child, on to the next sibling, and up
// where there is none.
void XmlFile::check_depth() const {
  size_t depth = 0;
  for (xml_node node = document_; node;) {
    if (node.first_child()) {
      if (++depth > kMaxDepth) {
        fail(node, cat("elements nested at most ", kMaxDepth, " levels deep"), "more");
      }
      node = node.first_child();
      continue;
    }
    while (node && !node.next_sibling()) {
      node = node.parent();
      --depth;
    }
    node = node.next_sibling();
  }
}

// pugixml gives -1 where it does not know the place; then the first line is named.
void XmlFile::fail_at(ptrdiff_t offset, const std::string& expected, std::string_view got) const {
  const auto end = text_.begin() + std::clamp<ptrdiff_t>(offset, 0, std::ssize(text_));
  throw invalid_argument(what_,
                         ": expected ",
                         expected,
                         ", got ",
                         clean_text(got),
                         " (line ",
                         std::count(text_.begin(), end, '\n') + 1,
                         ")");
}

void XmlFile::fail(xml_node at, const std::string& expected, std::string_view got) const {
  fail_at(at.offset_debug(), expected, got);
}

std::optional<int64_t> XmlFile::integer(xml_node node,
                                        const char* attribute,
                                        int64_t least,
                                        int64_t most) const {
  const pugi::xml_attribute found = node.attribute(attribute);
  if (!found)
    return std::nullopt;
  const auto value = parse_int(trim(found.value()));
  if (!value || *value < least || *value > most) {
    fail(node, cat(attribute, "= an integer from ", least, " to ", most), in_quotes(found.value()));
  }
  return value;
}

std::optional<int> XmlFile::small_integer(xml_node node,
                                          const char* attribute,
                                          int least,
                                          int most) const {
  const auto value = integer(node, attribute, least, most);
  if (!value)
    return std::nullopt;
  return static_cast<int>(*value);
}

PciAddress XmlFile::pci_address(xml_node node, const char* attribute) const {
  const char* const text = node.attribute(attribute).value();
  const auto address = parse_pci_address(text);
  if (!address)
    fail(node, cat(attribute, "= a PCI address"), text);
  return *address;
}

void XmlFile::check_root(std::string_view name) const {
  if (root().name() != name)
    fail(root(), cat("<", name, ">"), cat("<", root().name(), ">"));
}

}  // namespace muster
