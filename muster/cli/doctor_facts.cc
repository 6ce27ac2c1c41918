// Each function fills in the facts of one kind. A question that fails is a fact too: its error is
// kept for the check that judges it.
#include "muster/cli/doctor_facts.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/host_identity.h"
#include "muster/base/lookup.h"
#include "muster/base/route.h"
#include "muster/base/runtime_folder.h"
#include "muster/base/shell.h"
#include "muster/base/text_of.h"
#include "muster/device/probe.h"
#include "muster/launch/port.h"
#include "muster/supervise/child.h"
#include "muster/supervise/command_output.h"

namespace muster {

namespace {

// Without an inventory the host still has a name, which other checks need.
void look_at_devices(DoctorFacts& facts) {
  try {
    facts.host = probe_this_machine({.detail = GpuDetail::full, .links = true}).hosts.at(0);
  } catch (const Error& error) {
    facts.probe_error = error.what();
    facts.host.name = own_host_name();
  }
}

// Other hosts would reach this one by the addresses that its name resolves to.
void resolve_host_name(DoctorFacts& facts) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(facts.host.name.c_str(), nullptr, &hints, &list);
      error != 0) {
    facts.resolve_error = ::gai_strerror(error);
    return;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    std::string text = numeric_text(at->ai_addr, at->ai_addrlen);
    auto& known = facts.host_addresses;
    const bool is_new = !contains(known, text);
    if (!text.empty() && is_new)
      known.push_back(std::move(text));
  }
}

// Finds the address and interface from which traffic to the master would leave.
void find_master(DoctorFacts& facts, const std::string& master) {
  facts.master = master;
  if (master.empty())
    return;
  try {
    facts.master_address = address_towards(master);
    facts.master_interface = interface_with(facts.master_address);
  } catch (const Error& error) {
    facts.master_error = error.what();
  }
}

// A container's /dev/shm is often small, and a program that writes to a full one ends by SIGBUS.
void look_at_shared_memory(DoctorFacts& facts) {
  struct statvfs info{};
  if (::statvfs("/dev/shm", &info) != 0)
    return;
  facts.shm_total_bytes = uint64_t{info.f_blocks} * info.f_frsize;
  facts.shm_free_bytes = uint64_t{info.f_bavail} * info.f_frsize;
  facts.shm_writable = ::access("/dev/shm", W_OK | X_OK) == 0;
}

// Binds a free port of loopback, and finds out who has the port that ranks are to meet at.
void look_at_ports(DoctorFacts& facts, const std::string& master_port) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!fd.valid() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    facts.port_error = std::strerror(errno);
  }
  if (const auto port = parse_number(master_port, 1, 65535))
    facts.master_port_holder = port_holder(*port);
}

// The check must not wait long for a folder that another process has locked.
void look_at_leases(DoctorFacts& facts) {
  facts.lease_folder = default_runtime_folder();
  try {
    const LeaseFolder folder({.create = false, .patience = milliseconds(1000)});
    const auto look = [&](const GpuUuid& uuid) {
      if (!uuid.value.empty())
        facts.leases[uuid] = folder.holders(uuid);
    };
    for (const Gpu& gpu : facts.host.gpus) {
      look(gpu.uuid);
      for (const MigInstance& instance : gpu.mig)
        look(instance.uuid);
    }
  } catch (const Error& error) {
    facts.lease_error = error.what();
  }
}

// Importing torch takes seconds, and may hang where a driver does. What Python has printed counts,
// also where it ends badly.
void ask_python(DoctorFacts& facts, const std::string& python) {
  facts.asked_python = python;
  if (python.empty())
    return;
  try {
    const auto command = shell_command(
        {find_program(python, find_or(facts.environment, "PATH")),
         "-c",
         "import os, torch; print(torch.__version__, os.path.dirname(torch.__file__))"});
    facts.python_answer = std::string(trim(output_of_command(command + " || :", "--python")));
    if (facts.python_answer.empty())
      facts.python_error = "import torch failed";
  } catch (const Error& error) {
    facts.python_error =
        error.code() == ErrorCode::timeout ? "no answer in a minute" : error.message();
  }
}

}  // namespace

// The order matters: later questions use the host's name and GPUs.
DoctorFacts look_at_this_machine(const DoctorOptions& options) {
  DoctorFacts facts{.user = ::geteuid(), .environment = own_environment()};
  const auto value = [&](const char* name) {
    return find_or(facts.environment, name);
  };
  look_at_devices(facts);
  resolve_host_name(facts);
  find_master(facts, text_or(options.master, value("MASTER_ADDR")));
  look_at_shared_memory(facts);
  look_at_ports(facts, value("MASTER_PORT"));
  look_at_leases(facts);
  ask_python(facts, options.python);
  return facts;
}

}  // namespace muster
