// The fake GPU of the tests gives the bits of the CPU for everything that LibTorch can do.
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/gpu/same_on_both.h"

namespace tessera::internal::testing {
namespace {

using at::Tensor;

TEST(PretendDevice, MakesTensors) {
  expect_same([](at::Device device) -> std::vector<Tensor> {
    const auto options = at::TensorOptions(device);
    return {at::randn({3, 5}, options),
            at::rand({4}, options.dtype(at::kDouble)),
            at::randint(9, {7}, options.dtype(at::kLong)),
            at::randperm(6, options.dtype(at::kLong)),
            at::zeros({2, 0}, options),
            at::ones({2, 3}, options.dtype(at::kBFloat16)),
            at::full({3}, 2.5, options),
            at::arange(2, 11, 3, options),
            at::linspace(0, 1, 5, options),
            at::eye(3, options),
            at::tril_indices(3, 3, 0, options.dtype(at::kLong)),
            at::scalar_tensor(7, options),
            torch::tensor({1.0F, 2.0F}, options),
            at::empty_strided({2, 3}, {1, 2}, options).fill_(4),
            at::zeros_like(at::empty({2, 3, 4, 5}, options, at::MemoryFormat::ChannelsLast))};
  });
  EXPECT_EQ(at::empty({1}, at::kCUDA).device(), at::Device(at::kCUDA, 0));
  EXPECT_EQ(at::empty({0}, a_gpu()).data_ptr(), nullptr);
}

TEST(PretendDevice, ViewsAreViews) {
  expect_same([](at::Device device) -> std::vector<Tensor> {
    const Tensor base = draw({4, 6}, device);
    const Tensor half = base.narrow(1, 2, 3);
    half.zero_();
    base.t().select(0, 5).fill_(8);
    base.view({2, 12}).slice(1, 1, 12, 4).mul_(2);
    base.as_strided({2, 2}, {7, 3}, 1).add_(1);
    base.unfold(0, 2, 2).select(2, 0).neg_();
    const Tensor flat = base.flatten();
    EXPECT_TRUE(flat.is_alias_of(base));
    EXPECT_EQ(flat.storage().unsafeGetStorageImpl(), base.storage().unsafeGetStorageImpl());
    EXPECT_EQ(half.const_data_ptr<float>(), base.const_data_ptr<float>() + 2);
    EXPECT_EQ(base.detach().const_data_ptr<float>(), base.const_data_ptr<float>());
    return {base,
            half,
            flat,
            base.expand({3, 4, 6}),
            base.chunk(3, 1)[1],
            base.unbind(1)[4],
            at::view_as_complex(base.view({4, 3, 2})).conj().resolve_conj()};
  });
}

TEST(PretendDevice, WritesWhereItIsTold) {
  expect_same([](at::Device device) -> std::vector<Tensor> {
    const Tensor a = draw({3, 4}, device);
    Tensor out = at::empty({3, 4}, device);
    void* const place = out.data_ptr();
    at::add_out(out, a, a, 2);
    EXPECT_EQ(out.data_ptr(), place);
    Tensor grows = at::empty({0}, device);
    at::mul_out(grows, a, a);
    EXPECT_EQ(grows.device(), device);
    Tensor resized = draw({2, 2}, device);
    resized.resize_({3, 3}).view(-1).narrow(0, 4, 5).zero_();
    Tensor taken = at::empty({0}, device);
    taken.set_(a.storage(), 2, {2, 3}, {4, 1});
    EXPECT_TRUE(taken.is_alias_of(a));
    Tensor other = at::empty({0}, device);
    other.set_(a);
    EXPECT_TRUE(other.is_alias_of(a));
    a.add_(a).clamp_(-1, 1).masked_fill_(a > 0.5, 3);
    return {a, out, grows, resized, taken, other};
  });
}

TEST(PretendDevice, Indexes) {
  expect_same([](at::Device device) -> std::vector<Tensor> {
    const Tensor a = draw({5, 4}, device);
    const Tensor configurations = at::arange(0, 5, 2, at::TensorOptions(device).dtype(at::kLong));
    const Tensor b = a.clone();
    b.index_put_({configurations}, draw({3, 4}, device), /*accumulate=*/true);
    b[1][2] = 9;
    b.scatter_(1, configurations.view({3, 1}).fmod(4), 2.0);
    return {a.index({configurations}),
            a.index_select(0, configurations),
            a.index({a > 0}),
            a.masked_select(a < 0),
            b,
            a.gather(0, configurations.view({1, 3})),
            a.nonzero(),
            a[2],
            a.index({at::tensor({1, 3})}),  // indices on the host
            std::get<1>(a.topk(2, 1)),
            std::get<0>(a.sort(0)),
            at::where(a > 0, a, at::zeros({}, device))};
  });
}

TEST(PretendDevice, Computes) {
  expect_same([](at::Device device) -> std::vector<Tensor> {
    const Tensor a = draw({4, 6}, device);
    const Tensor b = draw({6, 3}, device);
    return {at::cat({a, a.neg()}, 1),
            at::stack({a, a}),
            a.matmul(b),
            at::linear(a, b.t()),
            a.sum(),
            a.sum(1, /*keepdim=*/true),
            a.mean(0),
            a.var(0),
            std::get<0>(a.max(1)),
            a.norm(),
            a.softmax(1),
            a.log_softmax(0),
            a.to(at::kHalf).softmax(1, at::kFloat),
            at::gelu(a),
            a.pow(2) + 1 / a.abs(),
            a * at::scalar_tensor(3.0),  // a scalar on the host
            a.to(at::kDouble).cumsum(0),
            a.to(at::kBFloat16).matmul(b.to(at::kBFloat16)),
            at::bmm(a.view({2, 2, 6}), b.expand({2, 6, 3})),
            at::einsum("ij,jk->ki", {a, b}),
            at::_foreach_add({a, a}, {b.sum(), b.sum()}, 1)[1],
            at::dropout(a, 0.3, /*train=*/true),
            at::feature_dropout(a.view({4, 6, 1}), 0.5, /*train=*/true),
            at::bernoulli(a.sigmoid()),
            at::multinomial(a.softmax(1), 2)};
  });
}

}  // namespace
}  // namespace tessera::internal::testing
