#include "muster/draw/xml_text.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(XmlText, MarkupIsEscaped) {
  EXPECT_EQ(xml_text(R"(<a b="c">&'</a>)"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;&lt;/a&gt;");
}

TEST(XmlText, WhatMustNotBeShownIsAQuestionMark) {
  EXPECT_EQ(xml_text("a\x1b[31m\n\x7f"), "a?[31m??");
  EXPECT_EQ(xml_text("\xff\xc3 \xe2\x82"), "?? ??") << "no UTF-8";
  EXPECT_EQ(xml_text("\xc0\xaf"), "??") << "a longer form than need be";
  EXPECT_EQ(xml_text("\xe2\x80\xae"), "?") << "a mark of direction";
  EXPECT_EQ(xml_text("\xc3\xbc\xf0\x9f\x99\x82"), "\xc3\xbc\xf0\x9f\x99\x82");
}

TEST(XmlText, IsCutByCharacters) {
  EXPECT_EQ(fit_text("\xc3\xbc\xc3\xbc\xc3\xbc", 3), "\xc3\xbc\xc3\xbc\xc3\xbc");
  EXPECT_EQ(fit_text("\xc3\xbc\xc3\xbc\xc3\xbc", 2), "\xc3\xbc…");
  EXPECT_EQ(text_width("\xc3\xbc\xc3\xbc", 10), text_width("uu", 10));
  EXPECT_LE(text_width(std::string(chars_in(100, 11), 'x'), 11), 100);
}

}  // namespace
}  // namespace muster
