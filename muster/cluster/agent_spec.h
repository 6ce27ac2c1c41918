// `muster run --hosts` hands this to the agent that it starts on another host: the job, as far as
// that host needs to know it, and the secret by which it joins. One line on the agent's standard
// input, the secret's digits and JSON; never in arguments or the environment, which others on that
// host can see.
#pragma once

#include <string>
#include <string_view>

#include "muster/cluster/cluster_options.h"
#include "muster/launch/launch.h"

namespace muster {

struct AgentSpec {
  LaunchOptions launch{};
  ClusterOptions cluster{};
  Environment environment{};  // set before anything else
  std::string folder{};       // to work in
};

// One line, with its newline. It holds the secret, and is for the caller to wipe.
std::string to_line(const AgentSpec& spec);

// Throws: invalid_argument when the text is none.
AgentSpec agent_spec_from(std::string_view line);

// The part of this process's environment that ranks on other hosts are to have too: variables that
// steer programs and libraries, never what belongs to one machine or names a secret.
Environment environment_to_send(const Environment& own);

}  // namespace muster
