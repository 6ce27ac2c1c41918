import torch
from accelerate import PartialState, notebook_launcher
from accelerate.utils import gather_object
from task import evaluate, fit


def main():
    state = PartialState(cpu=not torch.cuda.is_available())
    result = fit(3.0, state.device) if state.is_main_process else evaluate(10, state.device)
    results = gather_object([result])
    if state.is_main_process:
        print(results)
    state.destroy_process_group()


if __name__ == "__main__":
    notebook_launcher(main, num_processes=2)
