#include "tests/fault/nodes/network.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace sparsed::test {
namespace {

constexpr char kBridge[] = "sparsed0";
/// Nobody's: what is sent there is lost.
constexpr char kNowhere[] = "02:de:ad:de:ad:00";

absl::Status Run(const std::string& command) {
  if (std::system((command + " > /dev/null 2>&1").c_str()) == 0) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("`{}` failed", command));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Make(const std::vector<std::string>& machines) {
  std::unique_ptr<Network> network(new Network);
  absl::Status made = network->MakeAll(machines);
  if (!made.ok()) {
    return absl::UnimplementedError(
        fmt::format("no network namespaces here, which take root and iproute2: {}",
                    std::string(made.message())));
  }
  return network;
}

absl::Status Network::MakeAll(const std::vector<std::string>& machines) {
  // The bridge goes with this one, when the program ends.
  if (unshare(CLONE_NEWNET) != 0) return absl::ErrnoToStatus(errno, "unshare");
  for (const std::string& command :
       {std::string("ip link set lo up"), fmt::format("ip link add {} type bridge", kBridge),
        fmt::format("ip addr add 10.77.0.1/24 dev {}", kBridge),
        fmt::format("ip link set {} up", kBridge)}) {
    if (absl::Status done = Run(command); !done.ok()) return done;
  }
  for (const std::string& name : machines) {
    const size_t number = machines_.size() + 11;
    Machine machine{name, fmt::format("sparsed-{}-{}", getpid(), name),
                    fmt::format("10.77.0.{}", number)};
    if (absl::Status done = Run("ip netns add " + machine.name_space); !done.ok()) return done;
    machines_.push_back(machine);
    const std::string link = fmt::format("link{}", number), &ns = machine.name_space;
    for (const std::string& command :
         {fmt::format("ip link add {} type veth peer name eth0 netns {}", link, ns),
          fmt::format("ip link set {} master {}", link, kBridge),
          fmt::format("ip link set {} up", link), fmt::format("ip -n {} link set lo up", ns),
          fmt::format("ip -n {} addr add {}/24 dev eth0", ns, machine.address),
          fmt::format("ip -n {} link set eth0 up", ns)}) {
      if (absl::Status done = Run(command); !done.ok()) return done;
    }
  }
  return absl::OkStatus();
}

Network::~Network() {
  for (const Machine& machine : machines_) Run("ip netns del " + machine.name_space).IgnoreError();
}

const Network::Machine& Network::Find(const std::string& name) const {
  return *std::ranges::find(machines_, name, &Machine::name);
}

const std::string& Network::AddressOf(const std::string& machine) const {
  return Find(machine).address;
}

std::vector<std::string> Network::Within(const std::string& machine) const {
  return {"ip", "netns", "exec", Find(machine).name_space};
}

absl::Status Network::Cut(const std::string& from, const std::string& to) {
  const std::string neighbour = fmt::format("{} dev eth0", Find(to).address),
                    ns = Find(from).name_space;
  to_heal_.push_back(fmt::format("ip -n {} neigh del {}", ns, neighbour));
  return Run(
      fmt::format("ip -n {} neigh replace {} lladdr {} nud permanent", ns, neighbour, kNowhere));
}

absl::Status Network::Slow(const std::string& machine, int64_t bits_per_second) {
  const std::string& ns = Find(machine).name_space;
  to_heal_.push_back(fmt::format("tc -n {} qdisc del dev eth0 root", ns));
  return Run(
      fmt::format("tc -n {} qdisc replace dev eth0 root tbf rate {}bit burst 16kb latency "
                  "500ms",
                  ns, bits_per_second));
}

absl::Status Network::Heal() {
  absl::Status status;
  for (const std::string& command : to_heal_) status.Update(Run(command));
  to_heal_.clear();
  return status;
}

}  // namespace sparsed::test
