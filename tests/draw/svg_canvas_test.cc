#include "muster/draw/svg_canvas.h"

#include <gtest/gtest.h>

#include <pugixml.hpp>

namespace muster {
namespace {

TEST(SvgCanvas, IsADocumentWithWhatWasDrawn) {
  SvgCanvas canvas;
  canvas.box(
      {.x = 1, .y = 2, .width = 30, .height = 4}, {.fill = "#eee", .radius = 3}, "gpu", "GPU <0>");
  canvas.path("M0 0H9", {.stroke = "#000", .stroke_width = 1.5, .dashes = "4 3"});
  canvas.text(5, 9, "a & b", {.size = 12, .bold = true, .align = SvgAlign::right});
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(canvas.finish(100, 50, "a <box>").c_str()));
  const pugi::xml_node svg = document.child("svg");
  EXPECT_STREQ(svg.attribute("viewBox").value(), "0 0 100 50");
  EXPECT_STREQ(svg.child("title").text().get(), "a <box>");
  const pugi::xml_node box = svg.find_child_by_attribute("rect", "class", "gpu");
  EXPECT_EQ(box.attribute("width").as_int(), 30);
  EXPECT_EQ(box.attribute("rx").as_int(), 3);
  EXPECT_FALSE(box.attribute("stroke"));
  EXPECT_STREQ(box.child("title").text().get(), "GPU <0>");
  EXPECT_STREQ(svg.child("path").attribute("stroke-width").value(), "1.5");
  EXPECT_STREQ(svg.child("path").attribute("stroke-dasharray").value(), "4 3");
  EXPECT_STREQ(svg.child("text").attribute("text-anchor").value(), "end");
  EXPECT_STREQ(svg.child("text").text().get(), "a & b");
}

}  // namespace
}  // namespace muster
