// `muster report`: a run's folder as one page that loads nothing, or as JSON. Called by the
// command; which kind of run the folder holds is found here.
#pragma once

#include <string>

namespace muster {

struct RunReport {
  std::string html{};
  std::string json{};
};

// `folder`: a job's (muster run) or that of a run of tasks (muster tasks); absolute. What is
// damaged in it is said on the page. Throws: invalid_argument when the folder holds no run; io.
RunReport make_report(const std::string& folder);

// Says where ranks of a job left the others' collectives, a line each, or that none has. Throws: as
// make_report; failed_precondition if no rank has written an activity file.
std::string ranks_report(const std::string& folder);

}  // namespace muster
