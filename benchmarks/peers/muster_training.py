import muster
from task import train


def main():
    ctx = muster.init()
    return train(ctx.rank, ctx.device)


if __name__ == "__main__":
    print(muster.spawn(main, n=2)[0])
