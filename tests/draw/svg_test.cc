#include "muster/draw/svg.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Svg, NumbersHaveTwoDecimalsAtMost) {
  EXPECT_EQ(svg_number(12), "12");
  EXPECT_EQ(svg_number(12.304), "12.3");
  EXPECT_EQ(svg_number(3.25), "3.25");
  EXPECT_EQ(svg_number(7.05), "7.05");
  EXPECT_EQ(svg_number(-0.314), "-0.31");
  EXPECT_EQ(svg_number(-0.001), "0");
  EXPECT_EQ(svg_number(9.999), "10");
}

TEST(Svg, ElementsHaveTheirAttributesAndContent) {
  EXPECT_EQ(svg_element("rect", {{"x", 1}, {"y", 2.5}}), "<rect x=\"1\" y=\"2.5\"/>");
  EXPECT_EQ(svg_element("g", {{"class", "tip"}}, "<rect/>"), "<g class=\"tip\"><rect/></g>");
}

TEST(Svg, AttributesWithoutAValueAreLeftOut) {
  EXPECT_EQ(svg_element("rect", {{"class", ""}, {"x", 0}}), "<rect x=\"0\"/>");
}

TEST(Svg, NoValueEndsItsAttribute) {
  EXPECT_EQ(svg_element("text", {{"class", "a\" onload=\"b"}}, "x"),
            "<text class=\"a&quot; onload=&quot;b\">x</text>");
}

TEST(Svg, PathsAreCommandsWithTheirNumbers) {
  EXPECT_EQ(SvgPath().move(0, 4).line(1.5, -2).horizontal(22).vertical(3).close().text(),
            "M0 4L1.5 -2H22V3Z");
  EXPECT_TRUE(SvgPath().empty());
}

}  // namespace
}  // namespace muster
