// `--html FILE`: which device ran what and when, as one page that loads nothing. For the command
// when a run has ended, and at any moment of it. Pure; where the bars go is timeline_rows.h's part.
#pragma once

#include <string>

#include "muster/device/inventory.h"
#include "muster/tasks/task.h"

namespace muster {

// A row a GPU of every host that ran a task or is in `inventory` (GPUs that ran nothing too), and
// as many CPU rows as tasks ran on CPUs at one time; a bar an attempt on each of its GPUs, as high
// as its part of the GPU, coloured by how it ended. No script; light or dark as the reader's system
// is. Every text is escaped. Throws: invalid_argument unless `results[i]` is of tasks[i].
std::string timeline_html(const Tasks& tasks,
                          const TaskResults& results,
                          const Inventory& inventory,
                          const std::string& title);

// The picture alone, for a page of somebody else's that has timeline_style() in its head and says
// by variables what its colours are (--back, --front, --soft, --line). Throws: as above.
std::string timeline_figure(const Tasks& tasks,
                            const TaskResults& results,
                            const Inventory& inventory);
const char* timeline_style();

}  // namespace muster
