// Classifies pictures in files that a text file lists. The list, the data set, the optimizer and
// the loop follow cpp/custom-dataset of pytorch/examples; the code is new. Pictures are PPM files
// of one size, read without OpenCV, and the network is AlexNet made narrow and shallow.
//
// Arguments: [<folder> [<epochs>]]; its info.txt has lines "<picture>.ppm <label> train|test"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <tessera/tessera.h>
#include <torch/torch.h>

constexpr int64_t kSide = 32;
constexpr int64_t kClasses = 10;
constexpr int64_t kTrainBatch = 8;
constexpr int64_t kTestBatch = 200;
constexpr int64_t kLogEvery = 20;

using List = std::vector<std::pair<std::string, int64_t>>;

/// Reads a PPM file (P6) as [3, kSide, kSide].
torch::Tensor read_picture(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic;
  int64_t width = 0, height = 0, maximum = 0;
  file >> magic >> width >> height >> maximum;
  file.get();
  torch::Tensor pixels = torch::empty({kSide, kSide, 3}, torch::kUInt8);
  file.read(static_cast<char*>(pixels.data_ptr()), pixels.numel());
  TORCH_CHECK(file && magic == "P6" && width == kSide && height == kSide && maximum == 255,
              "expected a PPM file (P6) of ", kSide, " x ", kSide, ", got ", path);
  return pixels.permute({2, 0, 1}).to(torch::kFloat).div(255);
}

class Pictures : public torch::data::datasets::Dataset<Pictures> {
 public:
  Pictures(std::string folder, List list) : folder_(std::move(folder)), list_(std::move(list)) {}

  torch::data::Example<> get(size_t index) override {
    const auto& [path, label] = list_[index];
    return {read_picture(folder_ + "/" + path), torch::tensor(label)};
  }
  std::optional<size_t> size() const override { return list_.size(); }

 private:
  std::string folder_;
  List list_;
};

/// Returns the pictures for training and those for testing, shuffled.
std::pair<List, List> read_info(const std::string& folder) {
  std::ifstream info(folder + "/info.txt");
  TORCH_CHECK(info, "cannot read ", folder, "/info.txt");
  List train, test;
  std::string path, use;
  for (int64_t label = 0; info >> path >> label >> use;) {
    (use == "train" ? train : test).emplace_back(path, label);
  }
  std::mt19937 random(1);
  std::shuffle(train.begin(), train.end(), random);
  std::shuffle(test.begin(), test.end(), random);
  return {train, test};
}

struct NetworkImpl : torch::nn::SequentialImpl {
  NetworkImpl() {
    using namespace torch::nn;
    push_back(Conv2d(Conv2dOptions(3, 16, 5).stride(2).padding(2)));
    push_back(ReLU());
    push_back(MaxPool2d(MaxPool2dOptions(3).stride(2)));
    push_back(Conv2d(Conv2dOptions(16, 32, 3).padding(1)));
    push_back(ReLU());
    push_back(MaxPool2d(MaxPool2dOptions(3).stride(2)));
    push_back(Flatten());
    push_back(Dropout());
    push_back(Linear(32 * 3 * 3, 128));
    push_back(ReLU());
    push_back(Dropout());
    push_back(Linear(128, kClasses));
    push_back(LogSoftmax(1));
  }
};
TORCH_MODULE(Network);

template <typename Loader>
void train(Network& network, Loader& loader, tessera::Engine& engine, int64_t epoch) {
  network->train();
  int64_t index = 0;
  for (auto& batch : loader) {
    torch::Tensor output = network->forward(batch.data);
    torch::Tensor loss = torch::nll_loss(output, batch.target);
    loss.backward();
    engine.step();
    if (index++ % kLogEvery == 0) {
      std::printf("epoch %ld, batch %ld: loss %.4f\n", epoch, index, loss.item().toDouble());
    }
  }
}

template <typename Loader>
void test(Network& network, Loader& loader) {
  torch::NoGradGuard no_grad;
  network->eval();
  double loss = 0;
  int64_t correct = 0, pictures = 0;
  for (auto& batch : loader) {
    torch::Tensor output = network->forward(batch.data);
    loss += torch::nll_loss(output, batch.target, {}, torch::Reduction::Sum).item().toDouble();
    correct += output.argmax(1).eq(batch.target).sum().item().toLong();
    pictures += batch.data.size(0);
  }
  std::printf("test: loss %.4f, accuracy %.3f\n", loss / pictures, double(correct) / pictures);
}

int main(int argc, char** argv) {
  std::string folder = argc > 1 ? argv[1] : "./dataset";
  int64_t epochs = argc > 2 ? std::atoll(argv[2]) : 10;
  auto world = tessera::init_process_group();
  if (world->rank() != 0) std::freopen("/dev/null", "w", stdout);  // one rank prints
  torch::manual_seed(1 + world->rank());  // dropout differs by rank; parameters are rank 0's
  const char* strategy = std::getenv("STRATEGY");
  tessera::Options options{
      .strategy = tessera::parse_strategy(strategy != nullptr ? strategy : "zero3").value()};

  auto [train_list, test_list] = read_info(folder);
  auto train_set = Pictures(folder, train_list).map(torch::data::transforms::Stack<>());
  auto test_set = Pictures(folder, test_list).map(torch::data::transforms::Stack<>());
  auto train_loader =
      torch::data::make_data_loader(std::move(train_set),
                                    torch::data::samplers::DistributedSequentialSampler(
                                        train_list.size(), world->size(), world->rank()),
                                    kTrainBatch / world->size());
  auto test_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(test_set), kTestBatch);

  Network network;
  auto engine =
      tessera::parallelize(network, torch::optim::SGDOptions(0.001).momentum(0.5), options, world);

  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    train(network, *train_loader, *engine, epoch);
    test(network, *test_loader);
  }
  std::printf("parameters %016lx\n", tessera::parameter_hash(*engine));
}
