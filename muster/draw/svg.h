// SVG as text: elements with attributes, values escaped, numbers never in the user's locale. This
// header serves whoever draws and knows nothing of what is drawn. A private header.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace muster {

// A number with two decimals at most: "12", "-0.5", "3.25".
std::string svg_number(double value);

struct SvgAttribute {
  SvgAttribute(std::string_view name, double value) : name(name), value(svg_number(value)) {}
  SvgAttribute(std::string_view name, int value) : name(name), value(svg_number(value)) {}
  SvgAttribute(std::string_view name, std::string_view value) : name(name), value(value) {}
  std::string_view name;
  std::string value;  // not escaped; an attribute without a value is left out
};

// <name a="1" b="2">content</name>, or <name a="1" b="2"/> without content. The content is SVG
// already: give words to xml_text first.
std::string svg_element(std::string_view name,
                        std::initializer_list<SvgAttribute> attributes,
                        std::string_view content = {});

// The `d` of a path, command by command.
class SvgPath {
 public:
  SvgPath& move(double x, double y) { return add('M', {x, y}); }
  SvgPath& line(double x, double y) { return add('L', {x, y}); }
  SvgPath& horizontal(double x) { return add('H', {x}); }
  SvgPath& vertical(double y) { return add('V', {y}); }
  SvgPath& close() { return add('Z', {}); }
  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }

 private:
  SvgPath& add(char command, std::initializer_list<double> values);

  std::string text_;
};

// A path, and words at a place, each on a line of its own. `kind` is its class.
std::string svg_line(std::string_view kind, const SvgPath& path);
std::string svg_label(double x,
                      double baseline,
                      std::string_view words,
                      std::string_view kind = {});

}  // namespace muster
