#include "muster/run/task_order.h"

#include <nlohmann/json.hpp>

#include "muster/base/error.h"

namespace muster {

namespace {

// Every child has a descriptor for its answer; a rank has no others. The parent writes no other
// kinds, numbers and descriptors.
void check_order(const TaskOrder& order) {
  const bool is_rank = order.kind == TaskOrder::Kind::rank;
  const bool is_kind =
      is_rank || order.kind == TaskOrder::Kind::task || order.kind == TaskOrder::Kind::launcher;
  const bool has_fds =
      order.result_fd >= 0 && (is_rank || (order.stop_fd >= 0 && order.plan_fd >= 0));
  if (is_kind && has_fds && order.number < order.tasks.size() && order.parent > 0)
    return;
  throw Error(ErrorCode::invalid_argument, "tasks: expected an order that a TaskSet has written");
}

}  // namespace

std::string order_to_json(const TaskOrder& order) {
  const nlohmann::json json = {{"kind", order.kind},
                               {"name", order.name},
                               {"number", order.number},
                               {"tasks", order.tasks},
                               {"place", order.place},
                               {"rank_places", order.rank_places},
                               {"device", order.device},
                               {"uuid", order.uuid},
                               {"result_fd", order.result_fd},
                               {"stop_fd", order.stop_fd},
                               {"plan_fd", order.plan_fd},
                               {"lease", order.lease},
                               {"parent", order.parent}};
  return json.dump();
}

TaskOrder order_from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  TaskOrder order;
  order.kind = TaskOrder::Kind(json.at("kind").get<int>());
  json.at("name").get_to(order.name);
  json.at("number").get_to(order.number);
  json.at("tasks").get_to(order.tasks);
  json.at("place").get_to(order.place);
  json.at("rank_places").get_to(order.rank_places);
  json.at("device").get_to(order.device);
  json.at("uuid").get_to(order.uuid);
  json.at("result_fd").get_to(order.result_fd);
  json.at("stop_fd").get_to(order.stop_fd);
  json.at("plan_fd").get_to(order.plan_fd);
  json.at("lease").get_to(order.lease);
  json.at("parent").get_to(order.parent);
  check_order(order);
  return order;
}

}  // namespace muster
