#include <cstdlib>
#include <exception>
#include <optional>

#include "muster/run/task_order.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

// What a process finds in its environment that a TaskSet's parent may have started, or anybody. The
// caller makes one error of whatever is thrown.
void fuzz_task_order(const std::string& text) {
  std::optional<TaskOrder> order;
  try {
    order = order_from_json(text);
  } catch (const std::exception&) {
    return;
  }
  if (order->number >= order->tasks.size() || order->result_fd < 0 || order->parent <= 0)
    std::abort();
  const std::string once = order_to_json(*order);
  if (order_to_json(order_from_json(once)) != once)
    std::abort();
}

}  // namespace muster
