// How it works: a rank is a number whose digits are its coordinates, with the axes' sizes as bases
// and the last axis as the lowest digit.
#include "muster/base/mesh_shape.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// An axis of this size gets what the others leave.
constexpr int kTheRest = -1;

[[noreturn]] void refuse_mesh(const std::string& expected, const std::string& got) {
  throw invalid_argument("mesh: expected ",
                         expected,
                         ", got ",
                         got,
                         "; write it as dp=2,pp=2,tp=2, the fastest axis last");
}

bool is_word(std::string_view name) {
  constexpr auto kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !name.empty() && name.find_first_not_of(kLetters) == npos;
}

// `taken` are the names of the axes before.
void take_name(const std::string& name, StringSet& taken) {
  if (!is_word(name))
    refuse_mesh("letters, digits and _ in an axis' name", in_quotes(printable(name)));
  if (!taken.insert(name).second)
    refuse_mesh("each axis once", cat("'", printable(name), "' twice"));
}

// NAME=SIZE. The size may be any int here.
MeshAxis parse_axis(const std::string& text) {
  const size_t equals = std::min(text.find('='), text.size());
  const auto size = text.substr(std::min(equals + 1, text.size()));
  const auto number = parse_as<int>(size);
  if (!number)
    refuse_mesh("NAME=SIZE for each axis", in_quotes(printable(text)));
  return {.name = text.substr(0, equals), .size = *number};
}

int product_of_sizes(const MeshAxes& axes) {
  int product = 1;
  for (const MeshAxis& axis : axes)
    product *= axis.size;
  return product;
}

// Gives the axis of size -1, if there is one, the ranks that the others leave.
void fill_the_rest(MeshAxes& axes, int num_ranks) {
  MeshAxis* const rest = element_with(axes, kTheRest, &MeshAxis::size);
  if (rest == nullptr)
    return;
  const int others = -product_of_sizes(axes);  // the rest counts as -1 in the product
  if (num_ranks < 1)
    refuse_mesh("a size for every axis where the number of ranks is not known",
                cat(rest->name, "=-1"));
  if (num_ranks % others != 0)
    refuse_mesh(cat("axes whose product divides ", num_ranks, " ranks"),
                cat(others, " without ", rest->name));
  rest->size = num_ranks / others;
}

}  // namespace

int MeshShape::num_ranks() const {
  return product_of_sizes(axes);
}

size_t MeshShape::axis(std::string_view name) const {
  if (const auto place = index_with(axes, name, &MeshAxis::name))
    return *place;
  refuse_mesh(cat("an axis of ", axes.empty() ? "a mesh without axes" : to_string(*this)),
              in_quotes(printable(name)));
}

// Takes the digits of the rank, from the lowest one up.
Ints MeshShape::coordinates(int rank) const {
  Ints found(axes.size());
  for (size_t i = axes.size(); i-- > 0; rank /= axes[i].size)
    found[i] = rank % axes[i].size;
  return found;
}

// Puts the digits together again.
int MeshShape::rank_at(const Ints& coordinates) const {
  int rank = 0;
  for (const size_t i : indices_of(axes))
    rank = rank * axes[i].size + coordinates[i];
  return rank;
}

Ints MeshShape::group_of(int rank, const Strings& names) const {
  const auto free =
      mapped_to<std::set<size_t>>(names, [&](const std::string& name) { return axis(name); });
  // The coordinates along the free axes are set to 0, and all of the group have the rest in common.
  const auto fixed_coordinates = [&](int of_rank) {
    Ints fixed = coordinates(of_rank);
    for (const size_t axis : free)
      fixed[axis] = 0;
    return fixed;
  };
  const Ints mine = fixed_coordinates(rank);
  return filtered_indices(num_ranks(), [&](int other) { return fixed_coordinates(other) == mine; });
}

// A group is taken when its first rank comes, so that it is taken once.
std::vector<Ints> MeshShape::groups(const Strings& names) const {
  std::vector<Ints> all;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    auto group = group_of(rank, names);
    if (group.front() == rank)
      all.push_back(std::move(group));
  }
  return all;
}

// The product is checked on the way, before it can overflow.
MeshShape checked_mesh(MeshAxes axes, int num_ranks) {
  if (axes.empty())
    refuse_mesh("at least one axis", "none");
  StringSet names;
  int64_t product = 1;
  int rests = 0;
  for (const MeshAxis& axis : axes) {
    take_name(axis.name, names);
    const bool is_rest = axis.size == kTheRest;
    rests += is_rest ? 1 : 0;
    const bool is_size = axis.size >= 1 || is_rest;
    if (!is_size || rests > 1)
      refuse_mesh("sizes of at least 1, and one -1 for the rest", cat(axis.name, "=", axis.size));
    product *= std::max(1, axis.size);
    if (product > 1'000'000)
      refuse_mesh("at most 1000000 ranks", cat(product, " and more"));
  }
  fill_the_rest(axes, num_ranks);
  MeshShape shape{std::move(axes)};
  if (num_ranks > 0 && shape.num_ranks() != num_ranks)
    refuse_mesh(cat("sizes whose product is the ", num_ranks, " ranks there are"),
                cat(to_string(shape), ", which are ", shape.num_ranks()));
  return shape;
}

MeshAxes parse_axes(std::string_view text) {
  return mapped(split(text, ','), parse_axis);
}

MeshShape parse_mesh(std::string_view text, int num_ranks) {
  return checked_mesh(parse_axes(text), num_ranks);
}

std::string to_string(const MeshShape& shape) {
  return join(
      mapped(shape.axes, [](const MeshAxis& axis) { return cat(axis.name, "=", axis.size); }), ",");
}

std::string coordinates_text(const MeshShape& shape, int rank) {
  const auto found = shape.coordinates(rank);
  return join(
      mapped(indices_of(found), [&](size_t i) { return cat(shape.axes[i].name, " ", found[i]); }),
      ", ");
}

}  // namespace muster
