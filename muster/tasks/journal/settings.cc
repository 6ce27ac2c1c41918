// Every setting is a text by its flag's name, and one that was not given has none. to_texts and
// settings_of go through the same names: whoever adds one adds it to both.
#include "muster/tasks/journal/settings.h"

#include "muster/base/given.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {

// An empty text is no setting.
StringMap to_texts(const TasksSettings& settings) {
  StringMap texts;
  const auto keep = [&](const char* name, const std::string& value) {
    if (!value.empty())
      texts[name] = value;
  };
  keep("gpus", settings.gpus ? settings.gpus->text : "");
  keep("cpus", text_of_count(settings.cpus));
  keep("jobs", text_of_count(settings.max_running));
  keep("inventory", settings.inventory);
  keep("hosts", settings.hosts);
  keep("ssh", settings.ssh);
  keep("remote-muster", settings.remote_muster);
  keep("standalone", settings.standalone ? "yes" : "");
  keep("numa-binding", settings.numa_binding ? to_string(*settings.numa_binding) : "");
  keep("visibility", settings.visibility ? to_string(*settings.visibility) : "");
  // Flags that are off by default are texts when they are on.
  keep("no-lease", settings.lease ? "" : "yes");
  if (settings.fail_fast)
    keep("fail-fast", *settings.fail_fast ? "yes" : "no");
  keep("allow-nan", settings.allow_nan ? "yes" : "");
  return texts;
}

// A setting without a text keeps its default.
TasksSettings settings_of(const StringMap& texts) {
  const auto text = [&](const char* name) {
    return find_or(texts, name);
  };
  const auto number = [&](const char* name) {
    return parse_count(text(name)).value_or(0);  // texts of to_texts: it fits
  };
  TasksSettings settings{.cpus = number("cpus"),
                         .max_running = number("jobs"),
                         .inventory = text("inventory"),
                         .hosts = text("hosts"),
                         .ssh = text("ssh"),
                         .remote_muster = text("remote-muster"),
                         .standalone = !text("standalone").empty(),
                         .lease = text("no-lease").empty(),
                         .allow_nan = text("allow-nan") == "yes"};
  settings.gpus = given(text("gpus"), [](const auto& gpus) { return Selection(gpus); });
  settings.numa_binding = given(text("numa-binding"), parse_numa_binding);
  settings.visibility = given(text("visibility"), parse_visibility);
  settings.fail_fast = given(text("fail-fast"), [](const auto& word) { return word == "yes"; });
  return settings;
}

}  // namespace muster
