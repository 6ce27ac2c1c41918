// A task's log: the file that its standard output and error go to, and what is read from its end.
#pragma once

#include <string>

#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

// The folder of a task, below `run_dir`: the same in all of its attempts, with their logs. `place`:
// the task's among all.
std::string task_folder_of(const std::string& run_dir, const std::string& task, size_t place);

// Makes the folder `logs/NAME` of a run, where it is not there yet, and opens it, through no link.
// Throws: as make_folder_below.
Fd make_task_folder(const std::string& folder);

// Makes the file, with its folder. Throws: as make_task_folder and create_log.
Fd open_task_log(const std::string& path);

// The last lines, at most `count`, of the file's last 64 KiB, as they were seen (seen_line.h).
Strings last_lines_of_log(int fd, int count);

// The result that a task printed (last_json_line.h), of its log at `path`, which `fd` has open;
// empty when it printed none, or took its log away.
std::string result_in_log(int fd, const std::string& path);

}  // namespace muster
