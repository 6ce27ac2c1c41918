#include "muster/draw/svg.h"

#include <cmath>

#include "muster/base/strings.h"
#include "muster/draw/xml_text.h"

namespace muster {

std::string svg_number(double value) {
  const long hundredths = std::lround(value * 100);
  const long rest = std::labs(hundredths % 100);
  std::string text = cat(hundredths < 0 ? "-" : "", std::labs(hundredths / 100));
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
  std::string text = cat("<", name);
  for (const SvgAttribute& attribute : attributes) {
    if (!attribute.value.empty())
      text += cat(" ", attribute.name, "=\"", xml_text(attribute.value), "\"");
  }
  return text + (content.empty() ? std::string("/>") : cat(">", content, "</", name, ">"));
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
