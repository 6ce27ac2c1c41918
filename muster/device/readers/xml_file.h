// An XML file that may be anything, read within bounds: size, number of elements, depth. Nothing
// outside it is loaded and no entity is expanded. For the readers of XML; a private header, because
// it shows pugixml.
#pragma once

#include <cstdint>
#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>

#include "muster/base/strings.h"
#include "muster/device/inventory.h"

namespace muster {

using pugi::xml_node;

class XmlFile {
 public:
  // `what` names the file in errors ("inventory box.xml"); both must outlive this object.
  // Throws: invalid_argument with the line for what is not well-formed, and for what is beyond the
  // bounds.
  XmlFile(const std::string& text, const std::string& what);

  xml_node root() const { return document_.document_element(); }

  // Throws: invalid_argument with the line of `at`.
  [[noreturn]] void fail(xml_node at, const std::string& expected, std::string_view got) const;

  // An attribute as a number; nothing when it is absent. Throws: invalid_argument when it is no
  // number or out of range.
  std::optional<int64_t> integer(xml_node node,
                                 const char* attribute,
                                 int64_t least,
                                 int64_t most) const;
  std::optional<int> small_integer(xml_node node, const char* attribute, int least, int most) const;

  // The attribute as the address of a PCI device. Throws: invalid_argument when it is none.
  PciAddress pci_address(xml_node node, const char* attribute) const;

  // Throws: invalid_argument, naming `at`, where a list of `things` has `most` already.
  void check_room(const auto& list, size_t most, const char* things, xml_node at) const {
    if (list.size() >= most)
      fail(at, cat("at most ", most, " ", things), "more");
  }

  // Throws: invalid_argument where the document's element has another name.
  void check_root(std::string_view name) const;

 private:
  void check_bounds() const;
  void check_depth() const;
  void check_end() const;
  void check_single() const;
  [[noreturn]] void fail_at(ptrdiff_t offset,
                            const std::string& expected,
                            std::string_view got) const;

  const std::string& text_;
  const std::string& what_;
  pugi::xml_document document_;
};

}  // namespace muster
