// The plan of an order, and the parts of a large entry, are written first, under keys that no other
// coordinator uses. Then the entry of the log says where they are: until it is there, nobody has
// seen anything, and nobody mixes two orders.
#include "muster/cluster/order_log.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <ranges>
#include <string_view>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/cluster/stored_plan.h"
#include "muster/launch/job_setup.h"

namespace muster {

namespace {

// An entry that begins like this names the place and the number of an order's parts.
constexpr std::string_view kInParts = "in parts ";

std::string part_key(const std::string& place, int64_t part) {
  return cat(place, "/", part);
}

// "in parts PLACE NUMBER". Throws: invalid_argument for another text.
Strings keys_of_parts(std::string_view entry) {
  const std::string_view words = entry.substr(kInParts.size());
  const size_t blank = words.find(' ');
  constexpr int kMostParts = 4096;
  const auto count =
      blank == words.npos ? std::nullopt : parse_number(words.substr(blank + 1), 1, kMostParts);
  if (!count) {
    throw invalid_argument("order: expected the number of its parts, got '", printable(entry), "'");
  }
  const std::string place(words.substr(0, blank));
  return mapped_indices(*count, [&](int64_t part) { return part_key(place, part); });
}

// The entry that names the parts.
std::string write_parts(Store& store, int64_t number, std::string_view text) {
  const auto place = cat(kOrders, "-", number, "-", make_uuid());
  int64_t count = 0;
  for (; !text.empty(); ++count) {
    const size_t size = std::min(text.size(), store.max_value_bytes());
    store.set(part_key(place, count), std::string(text.substr(0, size)));
    text.remove_prefix(size);
  }
  return cat(kInParts, place, " ", count);
}

// Raises the log's size to the number. It never passes an entry that is there, whatever another
// coordinator does that was given up and wakes.
void raise_size(Store& store, int64_t number) {
  const auto key = log_size_key(kOrders);
  for (std::string known = cat(store.add(key, 0)); parse_int(known).value_or(number) < number;) {
    const auto now = store.compare_set(key, known, cat(number));
    if (now == cat(number))
      return;
    known = now;
  }
}

}  // namespace

// The size comes last, in case a coordinator ends between the two steps.
WrittenOrder write_order(Store& store, int64_t number, const Order& order) {
  const bool has_plan = order.kind == Order::Kind::start;
  const StoredPlan stored = has_plan ? store_plan(store, number, order) : StoredPlan();
  const auto text = to_text(order, stored);
  const bool is_large = text.size() > store.max_value_bytes();
  const std::string entry = is_large ? write_parts(store, number, text) : text;
  Strings keys = keys_of_order(number, entry, stored);
  if (store.compare_set(keys.front(), "", entry) != entry) {
    for (const auto& key : keys | std::views::drop(1))
      store.remove(key);
    return {};
  }
  raise_size(store, number);
  return {.is_ours = true, .keys = std::move(keys)};
}

Strings keys_of_order(int64_t number, const std::string& entry, const StoredPlan& stored) {
  Strings keys = {log_entry_key(kOrders, number)};
  if (entry.starts_with(kInParts))
    append_all(keys, keys_of_parts(entry));
  append_all(keys, keys_of(stored));
  return keys;
}

namespace {

// The order with the common part of its plan.
Order read_entry(Store& store, const std::string& entry) {
  if (!entry.starts_with(kInParts))
    return order_from_text(entry);
  std::string text;
  for (const auto& key : keys_of_parts(entry))
    text += store.get(key, milliseconds(0));
  return order_from_text(text);
}

}  // namespace

Order read_order(Store& store, const std::string& entry) {
  Order order = read_entry(store, entry);
  if (order.kind != Order::Kind::start)
    return order;
  WholeRound whole = read_whole(store, order);
  order.hosts = std::move(whole.hosts);
  order.plan = std::move(whole.plan);
  return order;
}

Order read_order_of_host(Store& store, const std::string& entry, const std::string& id) {
  Order order = read_entry(store, entry);
  if (order.kind != Order::Kind::start)
    return order;
  read_part(store, id, order);
  if (order.host_index == 0)
    order.whole = std::make_shared<const WholeRound>(read_whole(store, order));
  return order;
}

}  // namespace muster
