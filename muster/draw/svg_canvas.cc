// Each call appends one element to the body; `finish` puts the document around it. What is drawn
// later covers what was drawn before, so the caller's order decides what is seen.
#include "muster/draw/svg_canvas.h"

#include "muster/base/strings.h"
#include "muster/draw/svg.h"
#include "muster/draw/xml_text.h"

namespace muster {

namespace {

// An attribute without a value is left out of its element: zero is what SVG assumes anyway.
SvgAttribute unless_zero(const char* name, double value) {
  return value > 0 ? SvgAttribute(name, value) : SvgAttribute(name, "");
}

// A title inside an element is the text that a viewer shows where the pointer rests.
std::string title_of(std::string_view name) {
  return name.empty() ? std::string() : svg_element("title", {}, xml_text(name));
}

bool has_stroke(const SvgStyle& style) {
  return std::string_view(style.stroke) != "none";
}

double stroke_width_of(const SvgStyle& style) {
  return has_stroke(style) ? style.stroke_width : 0;
}

const char* stroke_of(const SvgStyle& style) {
  return has_stroke(style) ? style.stroke : "";
}

// The value of text-anchor; "start" is SVG's default and needs none.
const char* anchor_of(SvgAlign align) {
  switch (align) {
    case SvgAlign::left:
      return "";
    case SvgAlign::middle:
      return "middle";
    case SvgAlign::right:
      break;
  }
  return "end";
}

}  // namespace

void SvgCanvas::box(const SvgBox& box,
                    const SvgStyle& style,
                    const char* kind,
                    std::string_view name) {
  body_ += svg_element("rect",
                       {{"x", box.x},
                        {"y", box.y},
                        {"width", box.width},
                        {"height", box.height},
                        {"fill", style.fill},
                        {"stroke", stroke_of(style)},
                        unless_zero("stroke-width", stroke_width_of(style)),
                        {"stroke-dasharray", style.dashes},
                        unless_zero("rx", style.radius),
                        {"class", kind}},
                       title_of(name)) +
           "\n";
}

void SvgCanvas::path(const std::string& commands,
                     const SvgStyle& style,
                     const char* kind,
                     std::string_view name) {
  body_ += svg_element("path",
                       {{"d", commands},
                        {"fill", style.fill},
                        {"stroke", stroke_of(style)},
                        unless_zero("stroke-width", stroke_width_of(style)),
                        {"stroke-dasharray", style.dashes},
                        {"class", kind}},
                       title_of(name)) +
           "\n";
}

void SvgCanvas::text(int x, int baseline, std::string_view text, const SvgFont& font) {
  body_ += svg_element("text",
                       {{"x", x},
                        {"y", baseline},
                        {"font-size", font.size},
                        {"fill", font.fill},
                        {"text-anchor", anchor_of(font.align)},
                        {"font-weight", font.bold ? "bold" : ""}},
                       xml_text(text)) +
           "\n";
}

std::string SvgCanvas::finish(int width, int height, std::string_view title) const {
  const std::string head =
      svg_element("title", {}, xml_text(title)) + "\n" +
      svg_element("rect", {{"width", "100%"}, {"height", "100%"}, {"fill", "#ffffff"}}) + "\n";
  return cat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n",
             svg_element("svg",
                         {{"xmlns", "http://www.w3.org/2000/svg"},
                          {"width", width},
                          {"height", height},
                          {"viewBox", cat("0 0 ", width, " ", height)},
                          {"font-family", "sans-serif"}},
                         cat("\n", head, body_)),
             "\n");
}

}  // namespace muster
