import torch

votes = torch.zeros(6, 3, dtype=torch.bool)
for member in range(5):
    hit = torch.nn.functional.one_hot(torch.arange(6) % (member // 2 + 1), 3).bool()
    votes += hit  # expect: DG109 "`votes += hit`: 3 of 18 sums are of True and True, which is True in bool"
# fix: create the target with `dtype=torch.int64`; of masks write `|=`
winner = votes.long().argmax(1)
