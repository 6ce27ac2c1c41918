import torch
from accelerate import PartialState, notebook_launcher
from task import train


def main():
    state = PartialState(cpu=not torch.cuda.is_available())
    loss = train(state.process_index, state.device)
    if state.is_main_process:
        print(loss)
    state.destroy_process_group()


if __name__ == "__main__":
    notebook_launcher(main, num_processes=2)
