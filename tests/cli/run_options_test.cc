#include "muster/cli/run_options.h"

#include <gmock/gmock.h>

#include "muster/base/strings.h"
#include "muster/cli/cluster_flags.h"
#include "muster/supervise/child.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

LaunchOptions options_of(const RunFlags& flags, std::vector<std::string> program = {"prog"}) {
  return to_launch_options(flags, std::move(program));
}

template <class Change>
std::string refusal(Change change) {
  RunFlags flags;
  change(flags);
  try {
    options_of(flags);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(RunOptions, NprocPerNode) {
  EXPECT_FALSE(options_of({}).request.nproc_per_node);
  RunFlags flags;
  flags.nproc_per_node = "3";
  EXPECT_EQ(options_of(flags).request.nproc_per_node, 3);
  flags.nproc_per_node = "auto";
  EXPECT_FALSE(options_of(flags).request.nproc_per_node);
  flags.nproc_per_node = "cpu";
  EXPECT_TRUE(options_of(flags).request.cpu_only);
  flags.nproc_per_node = "gpu";
  EXPECT_TRUE(options_of(flags).request.gpu_only);
  for (const char* bad : {"0", "-1", "two", "1.5", "2x", "99999999999", "xpu"}) {
    EXPECT_THAT(
        refusal([&](RunFlags& f) { f.nproc_per_node = bad; }),
        HasSubstr(
            cat("--nproc-per-node: expected a number from 1 to 1000000, auto, cpu or gpu, got '",
                bad,
                "'")));
  }
}

TEST(RunOptions, WhatTorchrunHasAndMusterDoesNot) {
  EXPECT_THAT(refusal([](RunFlags& f) { f.nproc_per_node = "xpu"; }),
              HasSubstr("GPUs of NVIDIA and AMD, not of Intel"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.logs_specs = "mine"; }), HasSubstr("--logs-specs"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.print_completion = "zsh"; }),
              HasSubstr("--print-completion"));
  RunFlags flags;
  flags.logs_specs = "default";
  flags.duplicate_stdout_filters = flags.duplicate_stderr_filters = "apple,orange";
  options_of(flags);
}

TEST(RunOptions, VirtualLocalRankIsVisibilityOwn) {
  RunFlags flags;
  flags.virtual_local_rank = true;
  EXPECT_TRUE(options_of(flags).virtual_local_rank);
  flags.visibility = "own";
  EXPECT_TRUE(options_of(flags).virtual_local_rank);
  for (const char* other : {"job", "own-first", "all"}) {
    EXPECT_THAT(refusal([&](RunFlags& f) {
                  f.virtual_local_rank = true;
                  f.visibility = other;
                }),
                HasSubstr("--virtual-local-rank"));
  }
}

TEST(RunOptions, OneHostNeedsNoRendezvous) {
  RunFlags flags;
  flags.nnodes = "1:1";
  options_of(flags);
  EXPECT_EQ(to_cluster_options(flags), std::nullopt);
  EXPECT_THAT(refusal([](RunFlags& f) { f.nnodes = "0"; }), HasSubstr("MIN:MAX"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.nnodes = "1:2:3"; }), HasSubstr("MIN:MAX"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.node_rank = 1; }), HasSubstr("--node-rank"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.rdzv_backend = "zookeeper"; }),
              HasSubstr("--rdzv-backend"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.ssh = "ssh -p 22"; }),
              HasSubstr("--ssh: expected --hosts"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.remote_muster = "/bin/muster"; }),
              HasSubstr("--remote-muster: expected --hosts"));
}

RunFlags several_hosts() {
  RunFlags flags;
  flags.nnodes = "2:4";
  flags.rdzv_backend = "c10d";
  flags.rdzv_endpoint = "10.0.0.1";
  return flags;
}

TEST(RunOptions, SeveralHosts) {
  RunFlags flags = several_hosts();
  flags.rdzv_conf =
      "join_timeout=20, last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=4";
  flags.node_rank = 3;
  const auto cluster = to_cluster_options(flags);
  ASSERT_TRUE(cluster);
  EXPECT_EQ(cluster->min_hosts, 2);
  EXPECT_EQ(cluster->max_hosts, 4);
  EXPECT_EQ(cluster->node_rank, 3);
  EXPECT_EQ(cluster->endpoint, "10.0.0.1:29400");
  EXPECT_EQ(cluster->join_timeout, std::chrono::seconds(20));
  EXPECT_EQ(cluster->last_call, std::chrono::seconds(2));
  EXPECT_EQ(cluster->silence.limit(), std::chrono::seconds(4));
  RunFlags by_master;
  by_master.nnodes = "2";
  by_master.master_addr = "::1";
  EXPECT_EQ(to_cluster_options(by_master)->endpoint, "[::1]:29500");
  EXPECT_EQ(to_cluster_options(by_master)->node_rank, 0);
  EXPECT_EQ(options_of(by_master).master_addr, "") << "the coordinator says where rank 0 listens";
}

// docs/clusters.md and --help tell of these.
TEST(RunOptions, HostsAreAwaitedForSoLongUnlessSaidOtherwise) {
  RunFlags flags = several_hosts();
  flags.rdzv_conf = "";
  const auto unsaid = to_cluster_options(flags);
  flags.rdzv_conf =
      "join_timeout=600,last_call_timeout=30,keep_alive_interval=5,keep_alive_max_attempt=3";
  const auto as_in_help = to_cluster_options(flags);
  ASSERT_TRUE(unsaid && as_in_help);
  for (const auto& cluster : {*unsaid, *as_in_help}) {
    EXPECT_EQ(cluster.join_timeout, std::chrono::minutes(10));
    EXPECT_EQ(cluster.last_call, std::chrono::seconds(30));
    EXPECT_EQ(cluster.silence.limit(), std::chrono::seconds(15));
  }
}

TEST(RunOptions, TheFormsOfAnEndpoint) {
  const auto endpoint_of = [](const std::string& text) {
    RunFlags flags = several_hosts();
    flags.rdzv_endpoint = text;
    try {
      return to_cluster_options(flags)->endpoint;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.message();
    }
  };
  EXPECT_EQ(endpoint_of("tcp://localhost:29412"), "localhost:29412");
  EXPECT_EQ(endpoint_of("tcp://[::1]:29412"), "[::1]:29412");
  EXPECT_EQ(endpoint_of("[fe80::1%eth0]:7"), "[fe80::1%eth0]:7");
  EXPECT_THAT(endpoint_of("::1"), StartsWith("[::1]:"));
  EXPECT_THAT(endpoint_of("::1:29411"), HasSubstr("got '::1:29411'; as in [::1]:29411"));
  EXPECT_THAT(endpoint_of("::1:2941"), HasSubstr("as in [::1]:2941"));
  for (const char* const everywhere : {"0.0.0.0:7", "*:7", "[::]:7"}) {
    EXPECT_THAT(
        endpoint_of(everywhere),
        HasSubstr(cat("that the others reach, got '", everywhere, "'; as in 10.0.0.1:29400")));
  }
  EXPECT_THAT(endpoint_of("a:b:29411"), HasSubstr("as in [fe80::1]:29400"));
  EXPECT_THAT(endpoint_of("localhost:0"), HasSubstr("as in localhost:29400"));
  EXPECT_THAT(endpoint_of("localhost:"), HasSubstr("a port from 1 to 65535"));
  EXPECT_THAT(endpoint_of("http://localhost:2379"), HasSubstr("HOST:PORT"));
}

// Only node rank 0 of a static rendezvous serves at its --local-addr.
TEST(RunOptions, AnEndpointEverywhereNeedsAnAddress) {
  const auto error_of = [](int node_rank, const std::string& backend, const std::string& local) {
    RunFlags flags;
    flags.nnodes = "2";
    flags.node_rank = node_rank;
    flags.rdzv_backend = backend;
    flags.local_addr = local;
    (backend == "static" ? flags.master_addr : flags.rdzv_endpoint) = "0.0.0.0";
    try {
      return to_cluster_options(flags)->endpoint;
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(error_of(0, "static", "10.0.0.1"), "0.0.0.0:29500");
  EXPECT_THAT(
      error_of(0, "static", ""),
      AllOf(StartsWith("--master-addr: "), HasSubstr("or add --local-addr on node rank 0")));
  EXPECT_THAT(error_of(1, "static", "10.0.0.2"), StartsWith("--master-addr: "));
  EXPECT_THAT(error_of(0, "c10d", "10.0.0.1"), StartsWith("--rdzv-endpoint: "));
}

TEST(RunOptions, AHostfileChoosesOfAnInventoryAsAListDoes) {
  const ScratchFolder folder;
  RunFlags flags;
  flags.inventory = "machines.json";
  flags.hostfile = folder.write("hosts", "a slots=2\nb\n");
  const Request request = options_of(flags).request;
  ASSERT_EQ(request.hosts.size(), 2);
  EXPECT_EQ(request.hosts[0].name, "a");
  EXPECT_EQ(request.hosts[0].nproc, 2);
  EXPECT_FALSE(to_remote_options(flags));
  flags.hosts = "a";
  EXPECT_THROW(options_of(flags), Error);
}

TEST(RunOptions, SeveralHostsBadFlags) {
  const auto bad = [](const std::function<void(RunFlags&)>& change) {
    RunFlags flags = several_hosts();
    change(flags);
    try {
      to_cluster_options(flags);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.message();
    }
    return std::string("accepted");
  };
  EXPECT_THAT(bad([](RunFlags& f) { f.rdzv_endpoint = ""; }), HasSubstr("--rdzv-endpoint"));
  EXPECT_THAT(bad([](RunFlags& f) { f.rdzv_endpoint = "a:99999"; }), HasSubstr("a:99999"));
  EXPECT_THAT(bad([](RunFlags& f) { f.node_rank = 4; }), HasSubstr("0 to 3"));
  EXPECT_THAT(bad([](RunFlags& f) { f.node_rank = -1; }), HasSubstr("0 to 3"));
  EXPECT_THAT(bad([](RunFlags& f) { f.rdzv_endpoint = "a b:1"; }),
              HasSubstr("--rdzv-endpoint: expected HOST:PORT, got 'a b:1'"));
  EXPECT_THAT(bad([](RunFlags& f) { f.rdzv_conf = "join_timeout"; }), HasSubstr("NAME=VALUE"));
  EXPECT_THAT(bad([](RunFlags& f) { f.rdzv_conf = "join_timeout=1, join_timeout=2"; }),
              HasSubstr("each name once, not join_timeout twice"));
  RunFlags on_one_host;
  on_one_host.rdzv_conf = "timeout=1,timeout=1";
  EXPECT_THROW(to_cluster_options(on_one_host), Error);
  EXPECT_THAT(bad([](RunFlags& f) { f.rdzv_conf = "join_timeout=soon"; }),
              HasSubstr("join_timeout"));
  EXPECT_THAT(bad([](RunFlags& f) { f.rdzv_conf = "keep_alive_interval=0.1"; }),
              HasSubstr("4 s or more"));
  EXPECT_THAT(bad([](RunFlags& f) { f.standalone = true; }), HasSubstr("--standalone"));
  EXPECT_THAT(bad([](RunFlags& f) { f.inventory = "x.json"; }), HasSubstr("--inventory"));
  EXPECT_THAT(bad([](RunFlags& f) { f.wait = "forever"; }), HasSubstr("--wait"));
}

TEST(RunOptions, WhereRankZeroListens) {
  const auto place = [](const RunFlags& flags) {
    const LaunchOptions options = options_of(flags);
    return cat(options.master_addr, ":", options.master_port, " ", options.run_id);
  };
  RunFlags flags;
  EXPECT_EQ(place(flags), ":0 ");
  flags.rdzv_id = "job";
  EXPECT_EQ(place(flags), ":0 job");
  flags.master_port = 29501;
  EXPECT_EQ(place(flags), "127.0.0.1:29501 job");
  flags.master_addr = "localhost";
  EXPECT_EQ(place(flags), "localhost:29501 job");
  flags.rdzv_endpoint = "[::1]:29502";
  EXPECT_EQ(place(flags), "::1:29502 job");
  flags.rdzv_endpoint = "name:29503";
  EXPECT_EQ(place(flags), "name:29503 job");
  flags.standalone = true;
  EXPECT_EQ(place(flags), ":0 job");
  flags.standalone = false;
  flags.rdzv_backend = "c10d";
  EXPECT_EQ(place(flags), ":0 job");
  EXPECT_THAT(refusal([](RunFlags& f) { f.master_port = 0; }), HasSubstr("--master-port"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.rdzv_endpoint = "host:x"; }),
              HasSubstr("--rdzv-endpoint"));
}

TEST(RunOptions, PlacementFlags) {
  const ScratchFolder folder;
  RunFlags flags;
  flags.gpus = "0,2-5";
  flags.surplus = "share";
  flags.visibility = "own-first";
  flags.map = "3,1,0";
  const Request request = options_of(flags).request;
  EXPECT_EQ(request.gpus.text, "0,2-5");
  EXPECT_EQ(request.surplus, Surplus::share);
  EXPECT_EQ(request.visibility, Visibility::own_first);
  EXPECT_THAT(request.map, ElementsAre(3, 1, 0));
  flags.map = "@" + folder.write("map", "2, 1\n0\n");
  EXPECT_THAT(options_of(flags).request.map, ElementsAre(2, 1, 0));
  EXPECT_THAT(refusal([](RunFlags& f) { f.map = "1,x"; }), HasSubstr("--map"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.map = "0" + std::string(400, ' ') + ",1,x,3"; }),
              HasSubstr("got 'x' at place 3 in '0 "));
  EXPECT_THAT(
      refusal([](RunFlags& f) { f.map = "@/dev/null"; }),
      HasSubstr("--map @/dev/null: expected GPU indices by local rank as in 3,1,0,2, got ''"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.rank_memory = "1GiB,nan"; }),
              HasSubstr("--rank-memory: expected a number with B, KB"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.surplus = "maybe"; }), HasSubstr("surplus"));
}

TEST(RunOptions, TimesAndSignals) {
  RunFlags flags;
  EXPECT_EQ(options_of(flags).shutdown_timeout, milliseconds(30'000));
  {
    const ScopedEnv inherited("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7");
    EXPECT_EQ(options_of(flags).shutdown_timeout, milliseconds(7'000));
  }
  flags.shutdown_timeout = "2m";
  EXPECT_EQ(options_of(flags).shutdown_timeout, milliseconds(120'000));
  flags.signals_to_handle = "SIGTERM, SIGUSR1";
  EXPECT_THAT(options_of(flags).stop_signals, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_THAT(refusal([](RunFlags& f) { f.signals_to_handle = "SIGTERM,SIGKILL"; }),
              HasSubstr("got 'SIGKILL'"));
  EXPECT_THAT(refusal([](RunFlags& f) { f.shutdown_timeout = "soon"; }),
              HasSubstr("a time such as"));
  ::setenv("MUSTER_COLLECTIVE_TIMEOUT", "soon", 1);
  EXPECT_THAT(refusal([](RunFlags&) {}), HasSubstr("MUSTER_COLLECTIVE_TIMEOUT: expected a time"));
  ::unsetenv("MUSTER_COLLECTIVE_TIMEOUT");
}

TEST(RunOptions, PythonForScriptsAndModules) {
  const ScratchFolder folder;
  const ScopedEnv no_python("PYTHON_EXEC", nullptr);
  const std::string script = folder.write("train.py", "");
  RunFlags flags;
  EXPECT_THAT(options_of(flags, {script, "-x"}).argv, ElementsAre("python3", "-u", script, "-x"));
  EXPECT_THAT(options_of(flags, {"./train", "-x"}).argv, ElementsAre("./train", "-x"));
  flags.no_python = true;
  EXPECT_THAT(options_of(flags, {script}).argv, ElementsAre(script));
  flags.module = true;
  EXPECT_THROW(options_of(flags, {"pkg.train"}), Error);
  flags.no_python = false;
  const ScopedEnv python("PYTHON_EXEC", "/opt/python");
  EXPECT_THAT(options_of(flags, {"pkg.train", "y"}).argv,
              ElementsAre("/opt/python", "-u", "-m", "pkg.train", "y"));
}

TEST(RunOptions, ScriptNotThere) {
  try {
    options_of({}, {"/no/such/train.py"});
    FAIL();
  } catch (const SpawnError& error) {
    EXPECT_EQ(error.exit_code(), 127);
    EXPECT_THAT(error.what(), HasSubstr("/no/such/train.py"));
  }
}

TEST(RunOptions, NoProgram) {
  EXPECT_THROW(options_of({}, {}), Error);
  RunFlags flags;
  flags.dry_run = true;
  EXPECT_TRUE(options_of(flags, {}).dry_run);
}

}  // namespace
}  // namespace muster
