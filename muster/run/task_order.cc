// The order goes through the environment, where other processes of this user could write it too: it
// is checked as any input is.
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
  throw invalid_argument("tasks: expected an order that a TaskSet has written");
}

}  // namespace

// In this namespace, where nlohmann::json looks for it.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TaskOrder,
                                   kind,
                                   name,
                                   number,
                                   tasks,
                                   place,
                                   rank_places,
                                   device,
                                   uuid,
                                   result_fd,
                                   stop_fd,
                                   plan_fd,
                                   lease,
                                   parent)

std::string order_to_json(const TaskOrder& order) {
  return nlohmann::json(order).dump();
}

TaskOrder order_from_json(const std::string& text) {
  const auto order = nlohmann::json::parse(text).get<TaskOrder>();
  check_order(order);
  return order;
}

}  // namespace muster
