// Which XML a text is, from its outermost element. For read_inventory.h.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// The name of the outermost element, "topology", without reading the rest; empty when the text is
// not XML.
std::string xml_root_name(std::string_view text);

}  // namespace muster
