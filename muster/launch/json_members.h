// JSON of a struct by one list of its members, which is both written and read by: a list is a
// callable that takes the struct and calls its other argument with the name and the member, for
// each member. So writer and reader cannot drift apart.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "muster/base/clock.h"

namespace muster {

inline nlohmann::ordered_json member_json(milliseconds time) {
  return time.count();
}

template <class T>
nlohmann::ordered_json member_json(const T& value) {
  return value;
}

template <class T>
nlohmann::ordered_json member_json(const std::optional<T>& value) {
  return value ? member_json(*value) : nullptr;
}

inline void take_member(const nlohmann::ordered_json& json, milliseconds& time) {
  time = milliseconds(json.get<int64_t>());
}

template <class T>
void take_member(const nlohmann::ordered_json& json, T& value) {
  json.get_to(value);
}

template <class T>
void take_member(const nlohmann::ordered_json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null())
    take_member(json, value.emplace());
}

template <class T, class List>
nlohmann::ordered_json members_to_json(const T& value, const List& list) {
  nlohmann::ordered_json json;
  list(value, [&](const char* name, const auto& member) { json[name] = member_json(member); });
  return json;
}

// Throws: nlohmann's exceptions for a member that is missing, or of another type.
template <class T, class List>
void members_from_json(const nlohmann::ordered_json& json, T& value, const List& list) {
  list(value, [&](const char* name, auto& member) { take_member(json.at(name), member); });
}

// For JSON of other versions: a member that is missing keeps its value.
template <class T, class List>
void present_members_from_json(const nlohmann::ordered_json& json, T& value, const List& list) {
  list(value, [&](const char* name, auto& member) {
    const auto found = json.find(name);
    if (found != json.end())
      take_member(*found, member);
  });
}

}  // namespace muster
