// RUN_DIR/activity/hosts: what `muster top` and ranks ask of a job's other hosts, and the answers,
// as files, so that whoever asks needs nothing but the folder. The host's agent makes it, and
// carries requests and answers between the hosts (muster/cluster/host_telemetry.h); without an
// agent there is no folder.
//
//   launch         the launch of the job that the folder is of
//   asked          touched while somebody wants samples of the other hosts' ranks
//   late.<rank>    ranks that others wait for, which their own host is to describe
//   <n>.sample     the last sample of host n
//   <n>/<rank>     copies of other hosts' activity files of attempt n, at the end of the job
//                  (activity_copy.h)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

std::string hosts_folder(const std::string& run_dir);

// Makes it for this launch. What cannot be made is no error: then nobody is asked.
void make_hosts_folder(const std::string& run_dir, const std::string& launch);

// Empty: there is none.
std::string launch_of_hosts_folder(const std::string& run_dir);

// Whether there is an agent to ask.
bool can_ask_other_hosts(const std::string& run_dir);

// For the next five seconds. Where the folder may not be written to, nobody is asked.
void ask_other_hosts(const std::string& run_dir);
bool are_other_hosts_asked(const std::string& run_dir);

// Replaces it in one step: it is read at any time. Throws: io.
void write_host_sample(const std::string& run_dir, size_t host, const std::string& bytes);

// The files of those that were written in the last four seconds.
Strings fresh_host_samples(const std::string& run_dir);

// Ranks by their activity files, RUN_DIR/activity/<attempt>/<rank>.
struct LateRequest {
  int attempt = 0;
  Ints ranks{};
  bool operator==(const LateRequest&) const = default;
};

// "0 3 5": the attempt, and the ranks. Nothing for other text.
std::string to_text(const LateRequest& request);
std::optional<LateRequest> late_request_from(const std::string& text);

// Asks the hosts of these ranks to describe them, in the name of rank `asker`. False: there is
// nobody to ask.
bool ask_to_describe(const std::string& run_dir, int asker, const LateRequest& request);

// What was asked since the last time.
std::vector<LateRequest> take_late_requests(const std::string& run_dir);

// Removes all but the copies and their launch; and the folder, if there are no copies.
void remove_host_samples(const std::string& run_dir);

}  // namespace muster
