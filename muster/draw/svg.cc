// Everything is put together as text at once: there is no tree of elements. An attribute's value is
// escaped when the element is written, so nobody who draws has to think of it.
#include "muster/draw/svg.h"

#include <cmath>
#include <cstdlib>

#include "muster/base/strings.h"
#include "muster/draw/xml_text.h"

namespace muster {

std::string svg_number(double value) {
  // The C library would print the decimal point of the user's locale, so digits are cut here.
  const long hundredths = std::lround(value * 100);
  const long rest = std::labs(hundredths % 100);
  auto text = cat(hundredths < 0 ? "-" : "", std::labs(hundredths / 100));
  if (rest == 0)
    return text;
  text += cat(rest < 10 ? ".0" : ".", rest);
  if (text.back() == '0')
    text.pop_back();
  return text;
}

std::string svg_element(std::string_view name,
                        std::initializer_list<SvgAttribute> attributes,
                        std::string_view content) {
  auto text = cat("<", name);
  for (const SvgAttribute& attribute : attributes) {
    if (!attribute.value.empty())
      text += cat(" ", attribute.name, "=\"", xml_text(attribute.value), "\"");
  }
  if (content.empty())
    return text + "/>";
  return cat(text, ">", content, "</", name, ">");
}

std::string svg_line(std::string_view kind, const SvgPath& path) {
  return svg_element("path", {{"class", kind}, {"d", path.text()}}) + "\n";
}

std::string svg_label(double x, double baseline, std::string_view words, std::string_view kind) {
  return svg_element("text", {{"class", kind}, {"x", x}, {"y", baseline}}, xml_text(words)) + "\n";
}

SvgPath& SvgPath::add(char command, std::initializer_list<double> values) {
  text_ += command;
  const char* between = "";
  for (const double value : values) {
    text_ += cat(between, svg_number(value));
    between = " ";
  }
  return *this;
}

}  // namespace muster
