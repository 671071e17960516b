// An application that is linked with MPI, uses it, and makes a group of its communicator.
#include <tessera/mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <ATen/Functions.h>

namespace {

int level_called(const std::string& name) {
  if (name == "single") return MPI_THREAD_SINGLE;
  if (name == "funneled") return MPI_THREAD_FUNNELED;
  return name == "serialized" ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
}

/// Sums over every second rank of the application, while the application runs its own sum.
void train() {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  const auto group = tessera::mpi::process_group(half, std::chrono::seconds(20));
  MPI_Comm_free(&half);
  at::Tensor sum = at::full({1000}, rank);
  group->all_reduce(sum, tessera::ReduceOp::kSum, "half")->wait();
  int own = 1;
  int all = 0;
  MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("rank %d of %d: sum %g over %d, application %d\n", rank, size,
              sum[999].item<double>(), group->size(), all);
}

/// Prints the error of a call under way when MPI ends, and of a later call.
void outlive_mpi(bool leaves_first) {
  const auto message_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  };
  std::printf("null: %s\n", message_of([] { tessera::mpi::process_group(MPI_COMM_NULL); }).c_str());
  std::printf("no time: %s\n", message_of([] {
                                 tessera::mpi::process_group(MPI_COMM_WORLD,
                                                             std::chrono::seconds(0));
                               }).c_str());
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm half;
  MPI_Comm between;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &between);
  std::printf("between: %s\n", message_of([&] { tessera::mpi::process_group(between); }).c_str());
  const auto group = tessera::mpi::process_group(MPI_COMM_WORLD, std::chrono::seconds(20));
  at::Tensor tensor = at::zeros({1000});
  const auto never = group->irecv(tensor, (group->rank() + 1) % group->size(), "never");
  const auto alone =
      group->rank() == 0 ? group->all_reduce(tensor, tessera::ReduceOp::kSum) : never;
  MPI_Barrier(MPI_COMM_WORLD);  // all calls have begun
  if (leaves_first) tessera::mpi::leave();
  MPI_Finalize();
  std::printf("rank %d: %s; %s\n", group->rank(), message_of([&] { never->wait(); }).c_str(),
              message_of([&] { alone->wait(); }).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  int got = 0;
  MPI_Init_thread(&argc, &argv, level_called(argc > 1 ? argv[1] : "multiple"), &got);
  int status = 0;
  try {
    train();
  } catch (const std::exception& error) {
    std::printf("refused: %s\n", error.what());
    status = 3;
  }
  if (argc > 2) {
    outlive_mpi(argv[2] == std::string("leaves"));
    return status;
  }
  tessera::mpi::leave();
  MPI_Finalize();
  return status;
}
